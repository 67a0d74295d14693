"""Decodes JPEG XL with imagecodecs, which contains libjxl; the extra `jpegxl` installs it."""

from typing import Any

import numpy as np

from gpupipe.decoders.decoder import (
    CannotDecodeError,
    Decoder,
    Header,
    Pixels,
    convert_mode,
    iterate_boxes,
)
from gpupipe.decoders.image_header import read_header

_CODESTREAM = b"\xff\n"
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Ratios of width to height; a codestream stores a position in this list, from 1 on."""


class Imagecodecs(Decoder):
    """Decodes JPEG XL with libjxl. Of an animation, it decodes only the first frame."""

    place, formats, extra = 60, frozenset({"JPEG XL"}), "jpegxl"

    def __init__(self) -> None:
        import imagecodecs

        if not imagecodecs.JPEGXL.available:
            raise ImportError("imagecodecs was built without JPEG XL")
        self._decode: Any = imagecodecs.jpegxl_decode

    def probe(self, data: Any) -> Header | None:
        header = read_header(data)
        return _read_header(memoryview(data).cast("B")) if header.format == "JPEG XL" else None

    def decode(
        self, header: Header, data: Any, *, mode: str, dtype: str, window: Any = None,
        out: Any = None,
    ) -> Pixels:  # fmt: skip
        pixels = self._decode(bytes(data), index=0, keeporientation=True, numthreads=1)
        if pixels.dtype not in (np.uint8, np.uint16):
            raise CannotDecodeError(f"JPEG XL: {pixels.dtype} has no range as pixels")
        return convert_mode(pixels if pixels.ndim == 3 else pixels[..., None], mode)


def _read_header(view: memoryview) -> Header:
    """Parse the size and the orientation of a JPEG XL (ISO/IEC 18181-1, annex D)."""
    bits = int.from_bytes(_find_codestream(view)[2:26], "little")

    def take(count: int) -> int:
        """Return the next bits as a number, the lowest bit of each byte first."""
        nonlocal bits
        value, bits = bits & ((1 << count) - 1), bits >> count
        return value

    is_small = take(1)

    def take_side() -> int:
        return (take(5) + 1) * 8 if is_small else take((9, 13, 18, 30)[take(2)]) + 1

    height, ratio = take_side(), take(3)
    width = take_side() if not ratio else height * _RATIOS[ratio - 1][0] // _RATIOS[ratio - 1][1]
    has_extra = not take(1) and take(1)
    return Header("JPEG XL", height, width, orientation=take(3) + 1 if has_extra else 1)


def _find_codestream(view: memoryview) -> memoryview:
    """Return the bytes from the start of the codestream, which may be in a box of a container."""
    if view[:2] == _CODESTREAM:
        return view
    for kind, begin, _ in iterate_boxes(view):
        if kind in (b"jxlc", b"jxlp"):
            return view[begin + 4 * (kind == b"jxlp") :]
    raise CannotDecodeError("JPEG XL: the file has no codestream")
