"""Reads the pixels of an image that Pillow opened, with all bits of each sample.

Pillow reduces most images of over 8 bits per sample to 8 bits. To get all bits for uint16, this
module reads such an image twice with Pillow, or parses it itself. It rejects images that Pillow
reads wrong, or whose samples have no meaning as pixels.
"""

import math
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupipe.decoders.decoder import CannotDecodeError, Pixels, convert_mode
from gpupipe.errors import counted

_BITS, _PHOTOMETRIC, _PLANAR = 258, 262, 284
_TILE_WIDTH, _TILE_LENGTH, _SAMPLE_FORMAT = 322, 323, 339
_SIZ, _SIGNED = b"\xff\x4f\xff\x51", 0x80

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
"""Maps the last letter of Pillow's 16-bit raw modes to the letter of the opposite byte order.

Pillow keeps only the high byte. With the opposite byte order, it keeps the low byte instead.
"""


def read_pixels(
    image: Any, reopen: Callable[[bytes], Any], data: bytes, kind: str, mode: str, dtype: str
) -> Pixels:
    """Return the pixels of an image that Pillow opened: uint8 or uint16 (H, W, C).

    Args:
        image: Pillow's image, not loaded yet.
        reopen: Function that opens the bytes of a file of this format with Pillow.
        data: The bytes of the file.
        kind: The format, as in `Header.format`.
        mode: "rgb" or "gray".
        dtype: "uint8", or "uint16" to get all bits of colours. Gray of over 8 bits is returned as
            uint16 in both cases.

    Raises:
        CannotDecodeError: "uint16" is requested, but Pillow reads only 8 bits of the samples.
    """
    deep = _deep_gray(image, kind)
    if deep is None and dtype == "uint16":
        deep = _deep_colour(image, reopen, data, kind)
    if deep is not None:
        return convert_mode(deep, mode)
    return _as_bytes(image, "RGB" if mode == "rgb" else "L")


def _as_bytes(image: Any, mode: str) -> Pixels:
    image.load()
    image.info.pop("transparency", None)  # avoids a warning that a palette loses its alpha
    pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _deep_gray(image: Any, kind: str) -> Pixels | None:
    """Return uint16 (height, width, 1) if Pillow reads the image as 16-bit gray, else None."""
    if not (image.mode.startswith("I;16") or image.mode == "I"):
        return None
    bits = image.tag_v2.get(_BITS, (16,))[0] if kind == "TIFF" else 16
    pixels: Pixels = np.asarray(image).astype(np.uint16)[..., None]
    if bits == 12:
        pixels = pixels << 4 | pixels >> 8
    return pixels


def _deep_colour(
    image: Any, reopen: Callable[[bytes], Any], data: bytes, kind: str
) -> Pixels | None:
    """Return the pixels of an image of 16 bits a channel, uint16 (H, W, 3); None for 8 bits.

    Pillow keeps one byte of each sample. So this function reads most layouts twice: the high bytes,
    then the low bytes.
    """
    if kind == "JPEG 2000" and max(read_jpeg2000_sizes(data), default=7) >= 8:
        raise CannotDecodeError(
            "JPEG 2000: more than 8 bits of colour, of which Pillow reads 8 alone"
        )
    raw = get_raw_mode(image)
    if ";16" not in raw:
        return None
    if raw == "LA;16B":
        with reopen(_as_rgba(data)) as stored:
            pairs = np.asarray(stored).astype(np.uint16)
        return np.repeat(pairs[..., :1] << 8 | pairs[..., 1:2], 3, -1)
    other = raw[:-1] + _OTHER_BYTE[raw[-1]]
    if image.mode not in ("RGB", "RGBA") or "a;" in raw:
        raise CannotDecodeError(f"{kind}: 16 bits a sample as {raw}, of which Pillow reads 8 alone")
    with reopen(data) as low:
        low.tile = [tile._replace(args=_with_raw_mode(tile.args, other)) for tile in low.tile]
        both = _as_bytes(image, "RGB"), _as_bytes(low, "RGB")
    return both[0].astype(np.uint16) << 8 | both[1]


def _with_raw_mode(args: Any, raw: str) -> Any:
    return (raw, *args[1:]) if isinstance(args, tuple) else raw


def _as_rgba(png: bytes) -> bytes:
    """Relabel a PNG of 16-bit gray and alpha as 8-bit RGBA, which has as many bytes per pixel."""
    header = png[12:24] + b"\x08\x06" + png[26:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def decode_deep_pnm(data: bytes, mode: str) -> Pixels | None:
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
        return convert_mode(stored.astype(np.uint16), mode)
    wide = np.minimum(stored, highest).astype(np.uint32) * ((1 << 16) - 1)
    return convert_mode(((wide + highest // 2) // highest).astype(np.uint16), mode)


def check_supported(image: Any, data: bytes, kind: str) -> None:
    """Raise CannotDecodeError if Pillow opens an image, but cannot read its pixels right.

    Args:
        image: Pillow's image, not loaded yet.
        data: The bytes of the file.
        kind: The format, as in `Header.format`.
    """
    if kind == "TIFF":
        _check_tiff(image.tag_v2)
    if kind == "JPEG 2000":
        _check_jpeg2000(data)
    if image.mode == "F" or (image.mode == "I" and kind not in ("PNM", "PNG")):
        raise CannotDecodeError(f"{kind}: {_describe_depth(image)}, which have no range as pixels")


def get_raw_mode(image: Any) -> str:
    """Return Pillow's raw mode: its name for the pixel layout in the file."""
    args = image.tile[0].args if image.tile else ""
    return str(args[0] if isinstance(args, tuple) and args else args or "")


def _check_jpeg2000(data: bytes) -> None:
    """Raise CannotDecodeError for signed numbers, to which Pillow adds half of their range."""
    signed = [size for size in read_jpeg2000_sizes(data) if size & _SIGNED]
    if signed:
        bits = (max(signed) & ~_SIGNED) + 1
        raise CannotDecodeError(
            f"JPEG 2000: {bits}-bit signed integers, which have no range as pixels"
        )


def read_jpeg2000_sizes(data: bytes) -> bytes:
    """Return the depth of each component of a JPEG 2000, one byte each; b"" without a header.

    The byte is the number of bits - 1, plus 128 if the numbers are signed.
    """
    at = data.find(_SIZ)
    count = int.from_bytes(data[at + 40 : at + 42], "big") if at >= 0 else 0
    return data[at + 42 : at + 42 + 3 * count : 3]


def _check_tiff(tags: Any) -> None:
    """Raise CannotDecodeError for TIFFs that Pillow accepts but reads wrong."""
    bits, formats = set(tags.get(_BITS, (1,))), set(tags.get(_SAMPLE_FORMAT, (1,)))
    if formats != {1}:
        names = {2: "signed integers", 3: "floats", 5: "complex integers", 6: "complex numbers"}
        kinds = ", ".join(sorted(names.get(n, "numbers of no known format") for n in formats - {1}))
        raise CannotDecodeError(f"TIFF: {max(bits)}-bit {kinds}, which have no range as pixels")
    if len(bits) > 1 or max(bits) > 16:
        sizes = counted(max(bits), "bit") if len(bits) == 1 else "different numbers of bits"
        raise CannotDecodeError(f"TIFF: {sizes} a sample, which have no range as pixels")
    if max(bits) > 8 and tags.get(_PLANAR, 1) == 2 and len(tags.get(_BITS, (1,))) > 1:
        raise CannotDecodeError("TIFF: planes of more than 8 bits, which Pillow reads wrong")
    if max(bits) > 8 and tags.get(_PHOTOMETRIC) == 0:
        raise CannotDecodeError("TIFF: more than 8 bits with 0 for white, which Pillow reads wrong")


def _describe_depth(image: Any) -> str:
    if image.mode == "F":
        return "32-bit floats"
    raw = get_raw_mode(image)
    return "signed 16-bit numbers" if "16" in raw else "32-bit integers"


def read_tile(image: Any, kind: str) -> tuple[int, int]:
    """Return [height, width] of the tiles of a TIFF; zeros for images without tiles."""
    if kind != "TIFF":
        return 0, 0
    return image.tag_v2.get(_TILE_LENGTH, 0), image.tag_v2.get(_TILE_WIDTH, 0)
