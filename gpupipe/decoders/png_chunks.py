"""Finds PNGs about which libpng would write to stderr: DALI's decoder does not keep it from that.

libpng writes a line without a file name for each damaged file, and for each chunk that it ignores,
such as a colour profile of some programs.
"""

import struct
from typing import Any
from zlib import crc32

_MAX_SIDE = 1_000_000
"""libpng refuses longer sides (PNG_USER_WIDTH_MAX)."""
_QUIET = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tEXt", b"zTXt", b"iTXt", b"tIME", b"pHYs"}
_GAMMA = {b"sRGB": range(4), b"gAMA": (45455,)}
"""The values of chunks that contradict one another otherwise."""


def is_quiet(data: Any) -> bool:
    """Return whether libpng has nothing to write about a PNG, unless its encoder was wrong.

    It has nothing to write if the CRC of each chunk is right, if no chunk is of a kind that it may
    ignore, and if the image is not too long. The check takes 1 microsecond per kB.

    Args:
        data: The bytes of a plain PNG: see `Header.is_plain`.
    """
    view = memoryview(data)
    if max(struct.unpack(">II", view[16:24])) > _MAX_SIDE:
        return False
    at, kind = 8, b""
    while kind != b"IEND":
        (size,) = struct.unpack(">I", view[at : at + 4])
        kind, end = view[at + 4 : at + 8].tobytes(), at + 8 + size
        if struct.unpack(">I", view[end : end + 4])[0] != crc32(view[at + 4 : end]):
            return False
        value = int.from_bytes(view[at + 8 : end].tobytes(), "big") if kind in _GAMMA else 0
        if kind not in _QUIET and value not in _GAMMA.get(kind, ()):
            return False
        at = end + 4
    return True
