"""An array that was no image file, as steps work on it in DALI: in its own layout, and transposed
only for what DALI does to pixels alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn

from gpupipe.dataset.spec import Spec, space
from gpupipe.engines.base import LoadSpec
from gpupipe.engines.dali import numbers, ops
from gpupipe.engines.dali.node import Feed, Node
from gpupipe.engines.dali.resampling import source_region
from gpupipe.pipeline.axes import as_video, with_channels

_SOME = 4096.0


def array_form(spec: Spec) -> tuple[Any, int, str]:
    """What DALI is told of arrays that it is given: dtype, axes, layout."""
    return numbers.dali_type(spec.dtype), len(spec.layout), spec.layout


def some_size(spec: Spec) -> NDArray[np.float64]:
    """Along the axes of space, of an array such as there may be: (1, axes)."""
    return np.array([[n or _SOME for n in spec.sides]])


def sizes(job: LoadSpec, name: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Along the axes of space, of a field of these samples: (B, axes)."""
    array, layout = job.index.columns[name].array, job.pipeline.fields[name].layout
    assert array is not None
    shapes = (
        np.array([array.shape] * len(ids)).reshape(len(ids), -1)
        if array.shapes is None
        else array.shapes[ids]
    )
    return shapes[:, _axes(layout)].astype(np.float64)


class ArrayImage(Node):
    """The image that a step's `dali` works on, where it was an array from the beginning: see
    step.DaliImage.
    """

    def __init__(
        self,
        data: Any,
        size: NDArray[np.float64],
        feed: Feed,
        device: Literal["cpu", "gpu"],
        spec: Spec,
    ) -> None:
        """data: DataNode of the arrays in the CPU's memory, or None where only values are wanted.

        size: (B, axes of space).
        """
        super().__init__(
            data if data is None or device == "cpu" else data.gpu(), size, feed, device, spec
        )

    # --- asked by steps

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
        how = (interpolation, antialias)
        if interpolation == "nearest":
            start, end = (
                self._argument(c, 1, np.float32)
                for c in source_region(before, shape, None, interpolation)
            )
            self._resample(lambda node: ops.resize_region(node, size, start, end, *how))
        else:
            self._resample(lambda node: ops.resize(node, size, *how))
        self._size = shape

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        flags = [0 if f is None else self._argument(f, 0, np.int32) for f in (horizontal, vertical)]
        layout = self.spec.layout
        self._emit_through(
            "flip",
            [self.step],
            lambda node: _as_before(ops.flip(_video(node, layout), *flags), layout),
        )

    def to_dtype(self, dtype: str, scale: bool) -> None:
        self._cast(dtype, scale)

    def normalize(self, mean: ops.Fill, std: ops.Fill) -> None:
        layout, dtype = self.spec.layout, self.spec.dtype
        if dtype == "float64":
            behind = len(layout) - layout.index("C") - 1 if len(mean) > 1 else 0
            self._normalize_float64(mean, std, behind)
            return
        form = with_channels(layout)
        assert form is not None, "the step's spec refuses it"
        name, added = form

        def make(node: Any) -> Any:
            made = ops.normalize(
                _expanded(node, added, name),
                None,
                (None, None),
                (None, None),
                dtype,
                name,
                mean,
                std,
            )
            return _squeezed(made, added, layout)

        self._emit_through("crop_mirror_normalize", [self.step], make)

    # --- asked by the engine

    def finish(self, dtype: str, layout: str) -> Any:
        """The array as a DataNode of `dtype`, or of the one that dtypes.as_integers names."""
        if dtype != self.spec.dtype:
            self.to_dtype(dtype, False)
        return self._for_torch(dtype)

    # --- carrying out

    def _ready(self) -> None:
        """Nothing is deferred."""

    def _on_pixels(self, op: str, make: Callable[[Any], Any]) -> None:
        layout = self.spec.layout
        self._emit_through(
            op, [self.step], lambda node: _planes(make(_pixels(node, layout)), layout)
        )

    def _resample(self, make: Callable[[Any], Any]) -> None:
        layout = self.spec.layout
        self._emit_through(
            "resize", [self.step], lambda node: _as_before(make(_video(node, layout)), layout)
        )


def _axes(layout: str) -> list[int]:
    return [layout.index(axis) for axis in space(layout)]


def _expanded(node: Any, added: list[int], layout: str) -> Any:
    """With axes of length 1 added there, and called `layout`."""
    return fn.reinterpret(fn.expand_dims(node, axes=added) if added else node, layout=layout)


def _squeezed(node: Any, added: list[int], layout: str) -> Any:
    """The way back."""
    return fn.reinterpret(fn.squeeze(node, axes=added) if added else node, layout=layout)


def _behind(layout: str) -> list[int]:
    """Where an axis of channels is to be added, for operators that need one behind the axes of
    space.
    """
    return [len(layout)] if layout == space(layout) else []


def _video(node: Any, layout: str) -> Any:
    """In a layout that DALI's operators know; nothing moves."""
    return _expanded(node, _behind(layout), as_video(layout) or "")


def _as_before(node: Any, layout: str) -> Any:
    return _squeezed(node, _behind(layout), layout)


def _pixels(node: Any, layout: str) -> Any:
    """In the layout HWC."""
    return fn.transpose(node, perm=[1, 2, 0]) if layout == "CHW" else _video(node, layout)


def _planes(node: Any, layout: str) -> Any:
    """The way back."""
    return ops.planes(node) if layout == "CHW" else _as_before(node, layout)
