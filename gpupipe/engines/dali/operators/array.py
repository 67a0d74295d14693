"""Traces the steps on fields that are arrays, not image files.

An array keeps its own layout, but DALI's operators accept only layouts such as HWC, CHW and FCHW.
So the tracer renames the axes to a layout that DALI accepts, or transposes the array for operators
that accept only HWC. `video_layout` and `channel_layout` have a name for every layout that steps
accept (spec_checks.is_video_like, spec_checks.has_channel_layout).
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode

from gpupipe.dataset.layout import spatial_axes
from gpupipe.dataset.spec import Spec
from gpupipe.engines.base import Job
from gpupipe.engines.dali.operators import dtypes, ops
from gpupipe.engines.dali.operators.subgraph import Make, Subgraph, Value
from gpupipe.engines.dali.operators.tracer import DaliTracer

_EXAMPLE_SIDE = 4096.0


def feed_format(spec: Spec) -> tuple[Any, int, str]:
    """Return the dtype, ndim and layout with which arrays, or bytes of image files, enter DALI."""
    if spec.encoded:
        return types.UINT8, 1, ""
    return dtypes.dali_type(spec.dtype), len(spec.layout), spec.layout


def some_size(spec: Spec) -> NDArray[np.float64]:
    """Return an example size along the spatial axes of `spec`, (1, axes).

    An axis whose size differs between samples gets 4096, and so do both axes of image files.
    """
    return np.array([[n or _EXAMPLE_SIDE for n in ((None, None) if spec.encoded else spec.sides)]])


def sizes(job: Job, name: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sizes of the samples `ids` along the spatial axes of field `name`, (B, axes)."""
    array, layout = job.index.columns[name].array, job.pipeline.fields[name].layout
    assert array is not None
    shapes = np.asarray(array.shape if array.shapes is None else array.shapes[ids])
    return np.broadcast_to(shapes, (len(ids), len(layout)))[:, _axes(layout)].astype(np.float64)


class ArrayTracer(DaliTracer):
    """Turns the primitives that steps call on a field of arrays into DALI operators.

    See Primitives for what each method does.
    """

    def __init__(self, size: NDArray[np.float64], device: ops.Device, spec: Spec) -> None:
        super().__init__(size, device, spec)
        if device == "gpu":
            self._add(Subgraph(lambda node: node.gpu()))

    # --- called by steps

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        raise NotImplementedError("the step's spec refuses it")

    def crop(self, anchor: Any, shape: Any, fill: ops.Fill | None = None) -> None:
        anchor, shape = np.asarray(anchor, np.float64), np.asarray(shape, np.float64)
        if fill is None:
            self._check_inside(anchor, shape)
        make = partial(ops.cut, fill=fill, axes=_axes(self.spec.layout))
        self._emit_through("slice", make, *(ops.argument(v, 1, np.int32) for v in (anchor, shape)))
        self._size = shape

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        ops.find_interpolation(interpolation)
        before, self._size = self._size, np.asarray(shape, np.float64)
        make = partial(ops.resize, interpolation=interpolation, antialias=antialias)
        self._emit_video("resize", make, *ops.resize_arguments(before, self._size, interpolation))

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        self._emit_video("flip", ops.flip, *map(ops.flip_argument, (horizontal, vertical)))

    def to_dtype(self, dtype: str, scale: bool) -> None:
        self._cast(dtype, scale)

    def normalize(self, mean: ops.Fill, std: ops.Fill) -> None:
        layout, dtype = self.spec.layout, self.spec.dtype
        if dtype == "float64":
            trailing_axes = len(layout) - layout.index("C") - 1 if len(mean) > 1 else 0
            self._normalize_float64(mean, std, trailing_axes)
            return
        named = channel_layout(layout)
        assert named is not None, "the step's spec refuses it"
        name, added = named
        make = partial(ops.normalize, dtype=dtype, layout=name, mean=mean, std=std)
        self._emit_through("crop_mirror_normalize", _under_name(make, layout, name, added))

    # --- called by the engine

    def finish(self, dtype: str, layout: str) -> None:
        """Add the conversion to `dtype`. `layout` has no effect: an array keeps its layout."""
        if dtype != self.spec.dtype:
            self._cast(dtype, False)
        self._to_torch_dtype(dtype)

    # --- collecting operators

    def _on_pixels(self, op: str, make: Make, *arguments: Value) -> None:
        if self.spec.layout != "CHW":
            self._emit_video(op, make, *arguments)
            return

        def make_planes(node: DataNode, *nodes: Any) -> DataNode:
            return ops.planes(make(fn.transpose(node, perm=[1, 2, 0]), *nodes))

        self._emit_through(op, make_planes, *arguments)

    def _emit_video(self, op: str, make: Make, *arguments: Value) -> None:
        """Add an operator that accepts layouts of images and videos, such as HWC, FHWC and CDHW."""
        layout = self.spec.layout
        # an array with only spatial axes gets a channel axis
        added = [len(layout)] if layout == spatial_axes(layout) else []
        name = video_layout(layout) or ""
        self._emit_through(op, _under_name(make, layout, name, added), *arguments)


def _axes(layout: str) -> list[int]:
    return [layout.index(axis) for axis in spatial_axes(layout)]


def _under_name(make: Make, layout: str, name: str, added: list[int]) -> Make:
    """Wrap `make`, so that it gets arrays of `layout` renamed to `name`, a layout of DALI.

    The wrapper inserts axes of length 1 at the positions `added`, and removes them afterwards. No
    data moves.
    """

    def make_renamed(node: DataNode, *nodes: Any) -> DataNode:
        renamed = fn.reinterpret(fn.expand_dims(node, axes=added) if added else node, layout=name)
        made = make(renamed, *nodes)
        return fn.reinterpret(fn.squeeze(made, axes=added) if added else made, layout=layout)

    return make_renamed


def video_layout(layout: str) -> str | None:
    """Return DALI's name for a layout with spatial axes, or None if DALI has no such layout.

    The names are HWC, CHW, FCHW, FHWC, and the same with DHW or L in place of HW. A layout of
    spatial axes alone is named as if a channel axis followed, which the caller adds.
    """
    before, _, after = layout.partition(spatial_axes(layout))
    names = {(0, 0): "{}C", (1, 0): "C{}", (2, 0): "FC{}", (0, 1): "{}C", (1, 1): "F{}C"}
    name = names.get((len(before), len(after)))
    return None if name is None else name.format(spatial_axes(layout))


def channel_layout(layout: str) -> tuple[str, list[int]] | None:
    """Return a layout under which DALI normalizes arrays of `layout` per channel, or None.

    Returns:
        DALI's name for the layout, and the positions where axes of length 1 must be inserted.
    """
    before, after = layout.partition("C")[::2] if "C" in layout else (layout, "")
    if after:
        more = max(0, 2 - len(after))
        names = {(0, 2): "CHW", (0, 3): "CDHW", (1, 2): "FCHW", (1, 3): "FCDHW"}
        name = names.get((len(before), len(after) + more))
        added = [len(layout) + n for n in range(more)]
    else:
        more = max(0, 2 - len(before))
        name = {2: "HWC", 3: "DHWC", 4: "FDHWC"}.get(len(before) + more)
        added = [*range(more), *([] if "C" in layout else [len(before) + more])]
    return None if name is None else (name, added)
