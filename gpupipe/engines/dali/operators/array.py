"""Steps on fields that are arrays, not image files, in DALI.

An array keeps its own layout. It is transposed only for operators that DALI has for pixels alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn

from gpupipe.dataset.spec import Spec, spatial_axes
from gpupipe.engines.base import Job
from gpupipe.engines.dali.operators import numbers, ops
from gpupipe.engines.dali.operators.branches import Feed
from gpupipe.engines.dali.operators.layouts import channel_layout, video_layout
from gpupipe.engines.dali.operators.node import Node
from gpupipe.engines.dali.operators.resampling import source_region

_EXAMPLE_SIDE = 4096.0


def feed_format(spec: Spec) -> tuple[Any, int, str]:
    """Return the dtype, ndim and layout with which arrays of `spec` enter DALI."""
    return numbers.dali_type(spec.dtype), len(spec.layout), spec.layout


def some_size(spec: Spec) -> NDArray[np.float64]:
    """Return an example size along the spatial axes of `spec`, (1, axes).

    An axis whose size differs between samples gets 4096.
    """
    return np.array([[n or _EXAMPLE_SIDE for n in spec.sides]])


def sizes(job: Job, name: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sizes of the samples `ids` along the spatial axes of field `name`, (B, axes)."""
    array, layout = job.index.columns[name].array, job.pipeline.fields[name].layout
    assert array is not None
    shapes = (
        np.array([array.shape] * len(ids)).reshape(len(ids), -1)
        if array.shapes is None
        else array.shapes[ids]
    )
    return shapes[:, _axes(layout)].astype(np.float64)


class ArrayImage(Node):
    """The primitives of a field that is an array; see Primitives for each method."""

    def __init__(
        self,
        data: Any,
        size: NDArray[np.float64],
        feed: Feed,
        device: Literal["cpu", "gpu"],
        spec: Spec,
    ) -> None:
        """Start from the stored arrays.

        Args:
            data: DataNode of the arrays in CPU memory, or None to compute only argument values.
            size: The sizes along the spatial axes, (B, axes).
            feed: Feeds one operator argument to the graph; see branches.Feed.
            device: The device of the operators.
            spec: The spec of the arrays.
        """
        super().__init__(
            data if data is None or device == "cpu" else data.gpu(), size, feed, device, spec
        )

    # --- called by steps

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        raise NotImplementedError("the step's spec refuses it")

    def crop(self, anchor: Any, shape: Any, fill: ops.Fill | None = None) -> None:
        anchor, shape = np.asarray(anchor, np.float64), np.asarray(shape, np.float64)
        if fill is None:
            self._check_inside(anchor, shape)
        start, extent, axes = self._whole(anchor), self._whole(shape), _axes(self.spec.layout)
        self._emit_through(
            "slice", [self.step], lambda node: ops.cut(node, start, extent, fill, axes)
        )
        self._size = shape

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        before, shape = self._size, np.asarray(shape, np.float64)
        size = self._argument(shape, 1, np.float32)
        options = (interpolation, antialias)
        if interpolation == "nearest":
            start, end = (
                self._argument(c, 1, np.float32)
                for c in source_region(before, shape, None, interpolation)
            )
            self._resample(lambda node: ops.resize_region(node, size, start, end, *options))
        else:
            self._resample(lambda node: ops.resize(node, size, *options))
        self._size = shape

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        flags = [0 if f is None else self._argument(f, 0, np.int32) for f in (horizontal, vertical)]
        layout = self.spec.layout
        self._emit_through(
            "flip",
            [self.step],
            lambda node: _from_video(ops.flip(_to_video(node, layout), *flags), layout),
        )

    def to_dtype(self, dtype: str, scale: bool) -> None:
        self._cast(dtype, scale)

    def normalize(self, mean: ops.Fill, std: ops.Fill) -> None:
        layout, dtype = self.spec.layout, self.spec.dtype
        if dtype == "float64":
            trailing_axes = len(layout) - layout.index("C") - 1 if len(mean) > 1 else 0
            self._normalize_float64(mean, std, trailing_axes)
            return
        form = channel_layout(layout)
        assert form is not None, "the step's spec refuses it"
        name, added = form

        def make(node: Any) -> Any:
            normalized = ops.normalize(
                _expand(node, added, name), None, (None, None), (None, None), dtype, name, mean, std
            )
            return _squeeze(normalized, added, layout)

        self._emit_through("crop_mirror_normalize", [self.step], make)

    # --- called by the engine

    def finish(self, dtype: str, layout: str) -> Any:
        """Return the array as a DataNode of `dtype`, or of dtypes.as_integers(dtype).

        An array keeps its own layout: `layout` has no effect.
        """
        if dtype != self.spec.dtype:
            self.to_dtype(dtype, False)
        return self._to_torch_dtype(dtype)

    # --- emitting operators

    def _ready(self) -> None:
        """Do nothing: an array defers no work."""

    def _on_pixels(self, op: str, make: Callable[[Any], Any]) -> None:
        layout = self.spec.layout
        self._emit_through(
            op, [self.step], lambda node: _from_hwc(make(_to_hwc(node, layout)), layout)
        )

    def _resample(self, make: Callable[[Any], Any]) -> None:
        layout = self.spec.layout
        self._emit_through(
            "resize", [self.step], lambda node: _from_video(make(_to_video(node, layout)), layout)
        )


def _axes(layout: str) -> list[int]:
    return [layout.index(axis) for axis in spatial_axes(layout)]


def _expand(node: Any, added: list[int], layout: str) -> Any:
    """Insert axes of length 1 at the positions `added`, and call the result `layout`."""
    return fn.reinterpret(fn.expand_dims(node, axes=added) if added else node, layout=layout)


def _squeeze(node: Any, added: list[int], layout: str) -> Any:
    """Undo `_expand`: remove the axes `added`, and call the result `layout`."""
    return fn.reinterpret(fn.squeeze(node, axes=added) if added else node, layout=layout)


def _missing_channel_axis(layout: str) -> list[int]:
    """The position of the channel axis that DALI's operators need and a purely spatial array lacks.

    Empty if `layout` has further axes.
    """
    return [len(layout)] if layout == spatial_axes(layout) else []


def _to_video(node: Any, layout: str) -> Any:
    """Rename the layout to one that DALI's operators know. No data moves."""
    return _expand(node, _missing_channel_axis(layout), video_layout(layout) or "")


def _from_video(node: Any, layout: str) -> Any:
    """Undo `_to_video`."""
    return _squeeze(node, _missing_channel_axis(layout), layout)


def _to_hwc(node: Any, layout: str) -> Any:
    return fn.transpose(node, perm=[1, 2, 0]) if layout == "CHW" else _to_video(node, layout)


def _from_hwc(node: Any, layout: str) -> Any:
    return ops.planes(node) if layout == "CHW" else _from_video(node, layout)
