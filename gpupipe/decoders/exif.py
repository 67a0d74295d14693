"""The orientation tag of EXIF data."""

from __future__ import annotations

import struct

_ORIENTATION, _SHORT = 0x0112, 3
_MOST_TAGS = 200


def read_orientation(data: memoryview) -> int | None:
    """Return the orientation in EXIF data.

    Args:
        data: The EXIF data, which begins with its TIFF header.

    Returns:
        1 to 8, and 1 if there is no such tag; None if the data is so unusual that decoders could
        disagree about it.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(data[:4]))
    if order is None:
        return None
    try:
        (at,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, at)
        if at < 8 or count > _MOST_TAGS or at + 2 + 12 * count > len(data):
            return None
        tags = [struct.unpack_from(order + "HHIH", data, at + 2 + 12 * n) for n in range(count)]
    except struct.error:
        return None
    matches = [(kind, number, value) for tag, kind, number, value in tags if tag == _ORIENTATION]
    if not matches:
        return 1
    kind, number, value = matches[0]
    is_usual = len(matches) == 1 and kind == _SHORT and number == 1 and 1 <= value <= 8
    return value if is_usual else None
