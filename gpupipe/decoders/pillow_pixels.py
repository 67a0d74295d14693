"""Read the pixels of an image that Pillow opened, with all bits of each sample.

Pillow reads most images of more than 8 bits a sample as 8 bits. This module reads them twice, or by
itself, so that `to_dtype: uint16` gets all bits.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.decoder import CannotDecodeError
from gpupipe.decoders.pillow_checks import get_raw_mode, read_jpeg2000_sizes
from gpupipe.decoders.pillow_plugins import open_image

Pixels = NDArray[Any]
"""uint8 or uint16, (height, width, channels)."""

_BITS = 258
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_PNM = re.compile(
    rb"P(?P<kind>[56])"
    + _GAP
    + rb"(?P<width>\d{1,10})"
    + _GAP
    + rb"(?P<height>\d{1,10})"
    + _GAP
    + rb"(?P<maxval>\d{1,5})\s"
)
_OTHER_BYTE = {"L": "B", "B": "L", "N": "B" if np.little_endian else "L"}
"""Maps the last letter of Pillow's 16-bit raw modes to that of the opposite byte order.

Pillow keeps only the high byte. With the opposite byte order, it keeps the low byte instead.
"""


def read_pixels(image: Any, data: bytes, kind: str, mode: str, dtype: str) -> Pixels:
    """Return the pixels as stored, before any rotation, (height, width, channels).

    Args:
        image: Pillow's image, not loaded yet.
        data: The bytes of the file.
        kind: The format, as in `ImageHeader.format`.
        mode: "rgb" or "gray".
        dtype: "uint8" or "uint16".

    Raises:
        CannotDecodeError: Pillow reads only 8 bits of the samples, and 16 are wanted.
    """
    deep = _deep_gray(image, kind)
    if deep is None and dtype == "uint16":
        deep = _deep_colour(image, data, kind)
    if deep is not None:
        return convert_dtype(convert_mode(deep, mode), dtype)
    levels = _as_bytes(image, "RGB" if mode == "rgb" else "L")
    return levels.astype(np.uint16) * np.uint16(257) if dtype == "uint16" else levels


def _as_bytes(image: Any, mode: str) -> Pixels:
    image.load()
    image.info.pop("transparency", None)  # avoids a warning that a palette loses its alpha
    levels = np.asarray(image if image.mode == mode else image.convert(mode))
    return levels if levels.ndim == 3 else levels[..., None]


def _deep_gray(image: Any, kind: str) -> Pixels | None:
    """Return uint16 (height, width, 1) if Pillow reads the image as 16-bit gray, else None."""
    if not (image.mode.startswith("I;16") or image.mode == "I"):
        return None
    bits = image.tag_v2.get(_BITS, (16,))[0] if kind == "TIFF" else 16
    levels: Pixels = np.asarray(image).astype(np.uint16)[..., None]
    if bits == 12:
        levels = levels << 4 | levels >> 8
    return levels


def _deep_colour(image: Any, data: bytes, kind: str) -> Pixels | None:
    """Return uint16 (height, width, 3) for an image of 16 bits a channel; None if it has 8.

    Pillow keeps one byte of each sample. So most layouts are read twice: the high bytes, then the
    low bytes.
    """
    if kind == "JPEG 2000" and max(read_jpeg2000_sizes(data), default=7) >= 8:
        raise CannotDecodeError(
            "JPEG 2000: more than 8 bits of colour, of which Pillow reads 8 alone"
        )
    raw = get_raw_mode(image)
    if ";16" not in raw:
        return None
    if raw == "LA;16B":
        with open_image(_as_rgba(data), kind) as stored:
            pairs = np.asarray(stored).astype(np.uint16)
        return np.repeat(pairs[..., :1] << 8 | pairs[..., 1:2], 3, -1)
    other = raw[:-1] + _OTHER_BYTE[raw[-1]]
    if image.mode not in ("RGB", "RGBA") or "a;" in raw:
        raise CannotDecodeError(f"{kind}: 16 bits a sample as {raw}, of which Pillow reads 8 alone")
    with open_image(data, kind) as low:
        low.tile = [tile._replace(args=_with_raw_mode(tile.args, other)) for tile in low.tile]
        both = _as_bytes(image, "RGB"), _as_bytes(low, "RGB")
    return both[0].astype(np.uint16) << 8 | both[1]


def _with_raw_mode(args: Any, raw: str) -> Any:
    return (raw, *args[1:]) if isinstance(args, tuple) else raw


def _as_rgba(png: bytes) -> bytes:
    """Relabel a PNG of 16-bit gray and alpha as 8-bit RGBA, which has as many bytes per pixel."""
    header = png[12:24] + b"\x08\x06" + png[26:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def decode_deep_pnm(data: bytes) -> Pixels | None:
    """Decode a binary PGM or PPM of two bytes a sample to uint16; None for any other PNM."""
    header = _PNM.match(data)
    if header is None or not 255 < int(header["maxval"]) < 1 << 16:
        return None
    shape = int(header["height"]), int(header["width"]), 3 if header["kind"] == b"6" else 1
    if len(data) - header.end() < 2 * math.prod(shape):
        raise CannotDecodeError("PNM: it ends before its pixels do")
    stored = np.frombuffer(data, ">u2", math.prod(shape), header.end()).reshape(shape)
    highest = int(header["maxval"])
    if highest == (1 << 16) - 1:
        return stored.astype(np.uint16)
    wide = np.minimum(stored, highest).astype(np.uint32) * ((1 << 16) - 1)
    scaled: Pixels = ((wide + highest // 2) // highest).astype(np.uint16)
    return scaled


def convert_dtype(deep: Pixels, dtype: str) -> Pixels:
    """Convert uint16 to a dtype: "uint16" as it is, "uint8" by dropping the low byte."""
    return deep if dtype == "uint16" else (deep >> 8).astype(np.uint8)


def convert_mode(levels: Pixels, mode: str) -> Pixels:
    """Convert uint16 to the channels of a mode, with Pillow's integer luma of ITU-R BT.601."""
    if mode == "rgb":
        return levels if levels.shape[-1] == 3 else np.repeat(levels, 3, -1)
    if levels.shape[-1] == 1:
        return levels
    wide = levels.astype(np.uint32)
    gray = wide[..., 0] * 19595 + wide[..., 1] * 38470 + wide[..., 2] * 7471 + 0x8000
    return (gray >> 16).astype(np.uint16)[..., None]
