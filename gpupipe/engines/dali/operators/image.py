"""Traces the steps on a field of image files.

`ImageTracer` records the primitives that steps call as operations, in order. Each new operation
fuses with those before it if a rule of fusion.py fits:

    decode()           DecodeNode
    resize(256)        DecodeNode  ResizeNode
    crop(224)          DecodeNode(window)  ResizeNode(region)   only a window is decoded
    flip(flags)        DecodeNode(window)  ResizeNode(region)  FlipsNode
    normalize()        DecodeNode(window)  ResizeNode(region)  FlipsNode  NormalizeNode
    finish()           DecodeNode(window)  ResizeNode(region)  NormalizeNode(mirror)

`subgraph` turns the operations into DALI operators: here decoders.image_slice, resize and
crop_mirror_normalize.

Invariants:
- An operation fuses only with its neighbours, so that the order of the steps stays.
- Nothing fuses across a Subgraph, which is an operator without rules, or across a fork or a branch.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.fusion import (
    DecodeNode,
    FlipsNode,
    NormalizeNode,
    Operation,
    ResizeNode,
    WindowNode,
    fuse,
)
from gpupipe.engines.dali.operators.tracer import DaliTracer
from gpupipe.pipeline.step import Spec


class ImageTracer(DaliTracer):
    """Turns the primitives that steps call on a field of image files into DALI operators.

    See Primitives for what each method does.

    Args:
        size: [height, width] of each decoded image, (B, 2).
        device: The device of the operators.
        region_decode: Whether the decoder may decode a region of an image.
        decoder_options: Further arguments of DALI's decoder.
        is_decoded: Whether the input is decoded pixels. The graph then cuts the windows that the
            decoder would decode, and gets the same pixels.

    Attributes:
        decoding: How the files are decoded.
    """

    def __init__(
        self,
        size: NDArray[np.float64],
        device: ops.Device,
        region_decode: bool = False,
        decoder_options: dict[str, Any] | None = None,
        is_decoded: bool = False,
    ) -> None:
        super().__init__(size, device, Spec())
        self.decoding = DecodeOptions()
        self._region_decode = region_decode
        self._decoder_options = decoder_options or {}
        if is_decoded:
            self._add_decode(is_done=True)

    # --- called by steps

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        self.decoding = DecodeOptions(mode, apply_exif_orientation, dtype)
        self._add_decode()

    def crop(self, anchor: Any, shape: Any, fill: ops.Fill | None = None) -> None:
        anchor, shape = np.asarray(anchor, np.float64), np.asarray(shape, np.float64)
        if fill is None:
            self._check_inside(anchor, shape)
        self._add(WindowNode(anchor, shape, fill, (self.step,), self.spec.dtype, self._size))
        self._size = shape

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        ops.find_interpolation(interpolation)
        before, self._size = self._size, np.asarray(shape, np.float64)
        options = interpolation, antialias, (self.step,), self.spec.dtype
        self._add(ResizeNode(before, self._size, *options))

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        self._add(FlipsNode(horizontal, vertical, (self.step,), self.spec.dtype))

    def to_dtype(self, dtype: str, scale: bool) -> None:
        if dtype == self.spec.dtype:
            return
        if self._is_exact(dtype):
            self._add(NormalizeNode((self.step,), dtype, 255.0 if scale else 1.0))
        else:
            self._cast(dtype, scale)

    def normalize(self, mean: ops.Fill, std: ops.Fill) -> None:
        if self.spec.dtype == "float64":
            self._normalize_float64(mean, std, 0)
        else:
            self._add(NormalizeNode((self.step,), self.spec.dtype, mean=mean, std=std))

    # --- called by the engine

    def finish(self, dtype: str, layout: ops.Layout) -> None:
        if dtype != self.spec.dtype and not self._is_exact(dtype):
            self._cast(dtype, False)
        if self._is_normalizable(dtype):
            self._add(NormalizeNode((), dtype, layout=layout))
        else:
            if layout == "CHW":
                self._emit("transpose", ops.planes)
            self._to_torch_dtype(dtype)

    # --- collecting operations

    def _add_decode(self, is_done: bool = False) -> None:
        options = self._region_decode, self._decoder_options
        self._add(DecodeNode(self.decoding, (self.step,), *options, is_done))

    def _add(self, part: Operation) -> None:
        """Append an operation, and fuse it with those before it."""
        if self._parts and (fused := fuse(self._parts[-1], part)):
            self._parts.pop()
            for operation in fused:
                self._add(operation)
        else:
            self._parts.append(part)

    def _is_normalizable(self, dtype: str) -> bool:
        """Return whether crop_mirror_normalize can convert the current dtype to `dtype`."""
        return dtype in ops.DTYPES and self.spec.dtype in ops.DTYPES

    def _is_exact(self, dtype: str) -> bool:
        """Return whether crop_mirror_normalize gives the same results as a cast to `dtype`.

        It does not for uint8, where it rounds floats instead of truncating them. Nor does it from
        float16 to float32: fused with earlier operations, it would skip their rounding to float16.
        """
        is_inexact = dtype == "uint8" or (dtype, self.spec.dtype) == ("float32", "float16")
        return self._is_normalizable(dtype) and not is_inexact
