"""Prepares all operations on a sample as one task, which `gpupipe._kernels.run` does later.

With several threads, re-taking the GIL after each native call makes a thread wait. So a thread
prepares some samples, and then runs them in one call without the GIL: the decoding of each, which
the extension `gpupipe._jpeg` prepares, and the kernel after it. They run one after the other, so
their decoded pixels share the scratch memory of the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpupipe.decoders.builtin.jpeg_window import JpegWindow
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.ops import CropOp, DecodeOp, DeliverOp
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.program import Group
from gpupipe.engines.cpu.rules import Content, Kernel, Maybe, Task, match_pattern
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.runtime.compiled_extension import find_extension

_RGB = 3
_kernels = find_extension()


@dataclass(frozen=True)
class Preparation:
    """Prepares a decode or nothing, a crop or nothing, and a kernel that can be prepared.

    Attributes:
        decode: The decode of an image file; None if the content is pixels.
        crop: The crop; None if there is none.
        kernel: The kernel.
        output: Where it delivers.
    """

    decode: DecodeOp | None
    crop: CropOp | None
    kernel: Kernel
    output: OutputBuffer

    def prepare(self, content: Content, row: int) -> Task | None:
        """Return the task of a sample; None if it must run one operation after the other."""
        if self.decode is None:
            return self._prepare_kernel(content, row, None)
        assert isinstance(content, EncodedImage)
        decode, decoder = self.decode, content.decoder
        if not isinstance(decoder, JpegWindow) or not content.is_upright(decode.options):
            return None
        # A file that cannot be decoded must not decide the shape of the batch.
        if not self.output.is_allocated:
            return None
        pixels = scratch.take((*content.size, _RGB))
        window = decode.windows[row] if decode.windows else None
        before: Task = decoder.prepare(content.header, content.data, window, pixels)
        return self._prepare_kernel(pixels, row, before)

    def _prepare_kernel(self, pixels: Content, row: int, before: Task | None) -> Task | None:
        assert isinstance(pixels, np.ndarray) and self.kernel.prepare is not None
        if self.crop is not None:
            height, width = pixels.shape[:2]
            top, left, rows, columns = self.crop.windows[row]
            if min(top, left) < 0 or top + rows > height or left + columns > width:
                return None
            pixels = pixels[top : top + rows, left : left + columns]
        if pixels.strides[1:] != (_RGB, 1):
            return None
        return self.kernel.prepare(pixels, row, before)

    def finish(self, row: int) -> None:
        """End the operations on a sample, after its task was done."""
        if self.kernel.finish is not None:
            self.kernel.finish(row)


def find_preparation(groups: Sequence[Group]) -> Preparation | None:
    """Return what prepares all groups as one task; None if they are others than it knows."""
    if not groups or _kernels is None:
        return None
    *before, (kernel, ops) = groups
    deliver = ops[-1]
    if kernel.prepare is None or not isinstance(deliver, DeliverOp):
        return None
    first = [op for _, part in before for op in part]
    match = match_pattern((Maybe(DecodeOp), Maybe(CropOp)), first)
    if match is None or len(match.ops) < len(first):
        return None
    decode, crop = match.get(DecodeOp), match.get(CropOp)
    if crop is not None and crop.fill is not None:
        return None
    if decode is not None and (decode.options.mode, decode.options.dtype) != ("rgb", "uint8"):
        return None
    return Preparation(decode, crop, kernel, deliver.output)


def run_tasks(tasks: Sequence[Task]) -> list[bool]:
    """Do the tasks of several samples in one call without the GIL, one after the other.

    Returns:
        Whether each was done. It was not if the image is damaged.
    """
    done: list[bool] = _kernels.run(tasks)
    return done
