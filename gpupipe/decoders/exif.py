"""The orientation tag of EXIF data, and how it turns pixels."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_ORIENTATION, _SHORT = 0x0112, 3
_MAX_TAGS = 200


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
        if at < 8 or count > _MAX_TAGS or at + 2 + 12 * count > len(data):
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


def find_in_png(data: bytes) -> bytes:
    """Return the EXIF data of a PNG, which may follow its pixels; empty if there is none."""
    at, found = 8, b""
    while at + 8 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"IEND":
            break
        found = data[at + 8 : at + 8 + size] if kind == b"eXIf" else found
        at += 12 + size
    return found


def apply(pixels: Any, orientation: int) -> Any:
    """Return pixels (H, W, C) rotated and flipped as an orientation of 1 to 8 says."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def undo(pixels: Any, orientation: int) -> Any:
    """Return what `apply` with this orientation makes these pixels of."""
    return apply(pixels, {6: 8, 8: 6}.get(orientation, orientation))
