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
_COLORS = {b"tRNS", b"bKGD"}
"""Chunks with colours of the image: a transparent one, the background."""


def is_quiet(data: Any) -> bool:
    """Return whether libpng has nothing to write about a PNG, unless its encoder was wrong.

    It has nothing to write if the CRC of each chunk is right, if no chunk is of a kind that it may
    ignore, and if the image is not too long. The check takes 1 microsecond per kB.

    Args:
        data: The bytes of a plain PNG: see `Header.is_plain`.
    """
    view = memoryview(data)
    width, height, depth, color_type = struct.unpack(">IIBB", view[16:26])
    if max(width, height) > _MAX_SIDE:
        return False
    at, kind = 8, b""
    sizes: dict[bytes, int] = {}  # of the chunks before this one
    while kind != b"IEND":
        (size,) = struct.unpack(">I", view[at : at + 4])
        kind, end = view[at + 4 : at + 8].tobytes(), at + 8 + size
        if struct.unpack(">I", view[end : end + 4])[0] != crc32(view[at + 4 : end]):
            return False
        if kind in _COLORS:
            entries = min(sizes.get(b"PLTE", 0) // 3, 1 << depth)
            is_in_place = kind not in sizes and b"IDAT" not in sizes
            value = view[at + 8 : end].tobytes()
            if not is_in_place or not _is_color(kind, value, depth, color_type, entries):
                return False
        elif kind in _GAMMA:
            if int.from_bytes(view[at + 8 : end].tobytes(), "big") not in _GAMMA[kind]:
                return False
        elif kind not in _QUIET or (kind == b"PLTE" and sizes.keys() & _COLORS):
            return False
        at, sizes[kind] = end + 4, size
    return True


def _is_color(kind: bytes, value: bytes, depth: int, color_type: int, entries: int) -> bool:
    """Return whether a chunk of `_COLORS` is valid; `entries` is the size of the palette."""
    if color_type == 3:  # palette
        if kind == b"tRNS":
            return 0 < len(value) <= entries
        return len(value) == 1 and value[0] < entries
    if kind == b"tRNS" and color_type & 4:  # alpha
        return False
    count = 3 if color_type & 2 else 1
    is_whole = len(value) == 2 * count
    return is_whole and max(struct.unpack(f">{count}H", value)) < 1 << depth
