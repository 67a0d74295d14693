"""Prepares all calls of a sample as one piece of work, which `gpupipe._kernels.run` does later.

With several threads, each return to Python waits for the others. So a thread prepares some samples,
and then runs them in one call without the GIL: the decoding of each, which the extension
`gpupipe._jpeg` prepares, and the kernel after it. They run one after the other, so their decoded
pixels share the scratch memory of the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.builtin.jpeg_window import JpegWindow
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.program import Call, Calls, Groups, Kernel, Preparation
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.runtime.compiled_extension import find_extension

_RGB = 3
_kernels = find_extension()


def find_preparation(groups: Groups) -> Preparation | None:
    """Return what prepares all groups as one piece of work; None if they are others than it knows.

    It knows a `decode` or nothing, a `crop` or nothing, and a kernel that can be prepared.
    """
    if not groups or _kernels is None:
        return None
    *before, (kernel, calls) = groups
    if kernel.prepare is None or any(len(calls) != 1 for _, calls in before):
        return None
    crop = decode = None
    if before and before[-1][1][0].primitive == "crop":
        crop = before.pop()[1][0]
    if before and before[-1][1][0].primitive == "decode":
        decode = before.pop()[1][0]
    if before or (crop is not None and crop.options is not None):
        return None
    after = _AfterCrop(crop, kernel, calls)
    if decode is None:
        return after
    is_known = decode.options.mode == "rgb" and decode.options.dtype == "uint8"
    return _AfterDecode(decode, after) if is_known else None


def run_tasks(tasks: Sequence[Any]) -> list[bool]:
    """Run the tasks of several samples in one call without the GIL, one after the other.

    Returns:
        Whether each was done. It was not if the image is damaged.
    """
    return _kernels.run(tasks)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _AfterCrop:
    crop: Call | None
    kernel: Kernel
    calls: Calls

    def prepare(self, pixels: NDArray[np.uint8], row: int, before: Any = None) -> Any:
        if self.crop is not None:
            height, width = pixels.shape[:2]
            top, left, rows, columns = self.crop.rows[row]
            if min(top, left) < 0 or top + rows > height or left + columns > width:
                return None
            pixels = pixels[top : top + rows, left : left + columns]
        if pixels.strides[1:] != (_RGB, 1):
            return None
        assert self.kernel.prepare is not None
        return self.kernel.prepare(pixels, self.calls, row, before)

    def finish(self, row: int) -> None:
        if self.kernel.finish is not None:
            self.kernel.finish(self.calls, row)


@dataclass(frozen=True)
class _AfterDecode:
    decode: Call
    after: _AfterCrop

    def prepare(self, image: EncodedImage, row: int) -> Any:
        decoder = image.decoder
        if not isinstance(decoder, JpegWindow) or not image.is_upright(self.decode.options):
            return None
        # A file that cannot be decoded must not decide the shape of the batch.
        if self.after.calls[-1].options.batch is None:
            return None
        pixels = scratch.take((*image.size, _RGB))
        window = self.decode.rows[row] if self.decode.rows else None
        decoding = decoder.prepare(image.header, image.data, window, pixels)
        return self.after.prepare(pixels, row, decoding)

    def finish(self, row: int) -> None:
        self.after.finish(row)
