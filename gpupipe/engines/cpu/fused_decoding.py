"""Decodes a JPEG and runs the kernel that follows in one call, without the GIL in between.

With several threads, each return to Python waits for the others. So the extension `gpupipe._jpeg`
prepares the decoding, and a function of `gpupipe._kernels` does it first.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpupipe.engines.cpu.decoding import ImageFile, is_simple_jpeg
from gpupipe.engines.cpu.program import Call, Groups, RunAfter, Shortcut
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.runtime.compiled_extension import find_extension

_RGB = 3
_extension = find_extension("_jpeg")


@dataclass(frozen=True)
class _FusedDecoding:
    """A `decode`, perhaps a `crop`, and calls of one kernel that ends with a delivery."""

    decode: Call
    crop: Call | None
    calls: list[Call]
    run_after: RunAfter

    def run(self, image: ImageFile, row: int) -> bool:
        """Run all calls on an image. Returns False if it did nothing."""
        _, apply_exif_orientation, dtype = self.decode.options
        is_known = image.pixels is None and image.header.end
        if not is_known or not is_simple_jpeg(image, apply_exif_orientation, dtype):
            return False
        # A file that cannot be decoded must not decide the shape of the batch.
        if self.calls[-1].options.batch is None:
            return False
        height, width = image.size
        whole = 0, 0, height, width
        pixels = scratch.take((height, width, _RGB))
        window = self.decode.rows[row] if self.decode.rows else whole
        top, left, rows, columns = whole if self.crop is None else self.crop.rows[row]
        if min(top, left) < 0 or top + rows > height or left + columns > width:
            return False
        part = pixels[top : top + rows, left : left + columns]
        decoding = _extension.prepare(image.data, pixels, *window)
        return self.run_after(part, self.calls, row, decoding)


def find_shortcut(groups: Groups) -> Shortcut | None:
    """Return what runs all groups in one call; None if they are others than it knows."""
    if _extension is None or not 2 <= len(groups) <= 3:
        return None
    (_, decode), *between, (kernel, calls) = groups
    if decode[0].primitive != "decode" or decode[0].options[0] != "rgb":
        return None
    if kernel.run_after is None or calls[-1].primitive != "deliver":
        return None
    if not between:
        return _FusedDecoding(decode[0], None, list(calls), kernel.run_after)
    crop, *others = between[0][1]
    if others or crop.primitive != "crop" or crop.options is not None:
        return None
    return _FusedDecoding(decode[0], crop, list(calls), kernel.run_after)
