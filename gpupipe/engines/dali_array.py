"""An array that was no image file, as steps work on it in DALI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types

from gpupipe.engines.base import Job
from gpupipe.engines.dali_image import Feed
from gpupipe.engines.deferred import Emitted
from gpupipe.step import NoLowering, Spec


def array_form(spec: Spec) -> tuple[Any, int, str]:
    """What DALI is told of arrays that it is given: dtype, axes, layout."""
    return types.to_dali_type(spec.dtype), 3, "CHW"


def some_size(spec: Spec) -> NDArray[np.float64]:
    """[height, width] of an array such as there may be, (1, 2)."""
    return np.array([[spec.height or 4096.0, spec.width or 4096.0]])


def sizes(job: Job, name: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """[height, width] of a field of these samples, (B, 2)."""
    array = job.index.columns[name].array
    assert array is not None
    shapes = np.array([array.shape] * len(ids)) if array.shapes is None else array.shapes[ids]
    return shapes[:, -2:].astype(np.float64)


class ArrayImage:
    """The image that a step's `dali` works on, where it was an array from the beginning: see step.DaliImage."""

    exif = False

    def __init__(self, data: Any, size: NDArray[np.float64], feed: Feed, device: Literal["cpu", "gpu"], spec: Spec) -> None:
        """data: DataNode of the arrays, or None where only values are wanted. size: (B, 2)."""
        self.device, self.spec, self.step = device, spec, ""
        self.emitted: list[Emitted] = []
        self.size = size
        self._node = data if data is None or device == "cpu" else data.gpu()
        self._feed = feed

    def __getattr__(self, name: str) -> Any:
        raise NoLowering(f"{name} is not made for arrays")

    def to_dtype(self, dtype: str, scale: bool) -> None:
        if scale:
            raise NoLowering("to_dtype does not scale arrays")
        self._emit("cast", lambda node: fn.cast(node, dtype=types.to_dali_type(dtype)))

    def finish(self, dtype: str, layout: str) -> Any:
        """The array as a DataNode of `dtype`."""
        if dtype != self.spec.dtype:
            self.to_dtype(dtype, False)
        return self._node

    def _emit(self, op: str, make: Callable[[Any], Any]) -> None:
        self.emitted.append(Emitted(op, self.device, (self.step,) if self.step else ()))
        if self._node is not None:
            self._node = make(self._node)
