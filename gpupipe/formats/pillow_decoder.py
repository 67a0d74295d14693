"""Decode images with Pillow, to the same pixels on every engine.

This decodes the images that are not plain (see gpupipe.formats.image_header), and all images with
`decoder: pil`. Because every engine calls this code, these rules hold on all of them:

- Only the first frame is decoded, and alpha is dropped.
- 16 bits become 8 by dropping the low byte (value >> 8), as in Pillow, libpng and `to_dtype`. For
  uint16, 8 bits become 16 by * 257, so that 255 becomes 65,535.
- Floats, signed numbers and more than 16 bits a sample have no such rule, and are rejected.
- Pixels are rotated as EXIF says only on request. This holds for TIFF, too.
"""

from __future__ import annotations

import importlib
import io
import math
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpupipe.errors import counted
from gpupipe.formats import exif
from gpupipe.formats.image_header import ImageHeader

Pixels = NDArray[Any]

_PLUGINS = {
    "JPEG": "JpegImagePlugin.JpegImageFile",
    "PNG": "PngImagePlugin.PngImageFile",
    "WebP": "WebPImagePlugin.WebPImageFile",
    "BMP": "BmpImagePlugin.BmpImageFile",
    "TIFF": "TiffImagePlugin.TiffImageFile",
    "JPEG 2000": "Jpeg2KImagePlugin.Jpeg2KImageFile",
    "PNM": "PpmImagePlugin.PpmImageFile",
    "GIF": "GifImagePlugin.GifImageFile",
    "AVIF": "AvifImagePlugin.AvifImageFile",
    "ICO": "IcoImagePlugin.IcoImageFile",
}
_MEANINGS = {
    "not identified by this driver": "damaged, or of a kind that Pillow does not read",
    "unknown pixel mode": "a depth, sign or number of channels that Pillow does not read",
    "decoder error": "damaged, or of a compression that Pillow does not read",
}
_COMPRESSIONS = {34712: "JPEG 2000", 34887: "LERC", 34933: "PNG", 50002: "JPEG XL"}
"""Names of TIFF compressions that Pillow's errors call by their numbers."""
_ORIENTATION = 0x0112
_BITS, _PHOTOMETRIC, _PLANAR, _TILE_WIDTH, _TILE_LENGTH, _SAMPLE_FORMAT = (
    258,
    262,
    284,
    322,
    323,
    339,
)
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
_SIZ, _SIGNED = b"\xff\x4f\xff\x51", 0x80
_OTHER_BYTE = {"L": "B", "B": "L", "N": "B" if np.little_endian else "L"}
"""Maps the last letter of Pillow's 16-bit raw modes to that of the opposite byte order.

Pillow keeps only the high byte. With the opposite byte order, it keeps the low byte instead.
"""


class CannotDecode(RuntimeError):
    """The image is damaged, too large, or of a kind that has no meaning as pixels."""


def check_pixels(height: int, width: int, max_pixels: int | None) -> None:
    """Raise CannotDecode if an image has more than `max_pixels` pixels; None is no limit."""
    if max_pixels is not None and height * width > max_pixels:
        raise CannotDecode(
            f"an image of {width:,} x {height:,} pixels, more than data.max_pixels={max_pixels:,}"
        )


def check_header(header: ImageHeader, max_pixels: int | None) -> None:
    """Raise CannotDecode if decoding would take too much memory, or too long."""
    check_pixels(header.height, header.width, max_pixels)
    if header.too_many_scans:
        raise CannotDecode("a JPEG of more than 100 scans, which would take a decoder very long")


def decode(
    data: Any, kind: str, mode: str, dtype: str, apply_exif: bool, max_pixels: int | None
) -> Pixels:
    """Decode an image.

    Args:
        data: The bytes of the image, as a buffer.
        kind: The format, as in `ImageHeader.format`.
        mode: "rgb" or "gray".
        dtype: "uint8" or "uint16".
        apply_exif: Whether to rotate the image as its EXIF orientation says.
        max_pixels: The most pixels to accept, checked before decoding; None is no limit.

    Returns:
        The pixels, (height, width, channels) with 3 channels for "rgb" and 1 for "gray".

    Raises:
        CannotDecode: The image cannot be decoded, for whatever reason.
        MemoryError: There is not enough memory.
    """
    if not kind:
        head = bytes(memoryview(data).cast("B")[:16])
        raise CannotDecode(
            f"not an image in a known format (it begins with {head!r})"
            if head
            else "the file is empty"
        )
    arguments = bytes(data), kind, mode, dtype, apply_exif, max_pixels
    try:
        try:
            return _decode(*arguments)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            with _lift_limit():
                return _decode(*arguments)
    except (CannotDecode, MemoryError):
        raise
    except Exception as e:  # Pillow's readers raise anything: SyntaxError, KeyError, struct.error
        raise CannotDecode(f"{kind}: {_plain(e, kind)}") from e


def _plain(error: Exception, kind: str) -> str:
    """Return Pillow's error in plain words."""
    message = str(error) or type(error).__name__
    if message.isdigit() and kind == "TIFF":
        return f"compression {_COMPRESSIONS.get(int(message), message)}, which Pillow does not read"
    for words, meaning in _MEANINGS.items():
        if message.startswith(words):
            return f"{meaning} ({message})"
    return message


def _decode(
    data: bytes, kind: str, mode: str, dtype: str, apply_exif: bool, max_pixels: int | None
) -> Pixels:
    with _open(data, kind) as image, _lift_limit_if_exceeded(image.width * image.height):
        check_pixels(image.height, image.width, max_pixels)
        if kind == "TIFF":
            _check_tiff(image.tag_v2, max_pixels)
        if kind == "JPEG 2000":
            _check_jpeg2000(data)
        if image.mode == "F" or (image.mode == "I" and kind not in ("PNM", "PNG")):
            raise CannotDecode(f"{kind}: {_depth(image)}, which have no range as pixels")
        if (deep := _deep_pnm(data) if kind == "PNM" else None) is not None:
            return _of_dtype(_of_mode(deep, mode), dtype)
        if kind == "JPEG" and mode == "gray":
            image.draft("L", image.size)  # Take the file's luma, as every other decoder does.
        if kind == "TIFF":  # Pillow rotates a TIFF while it reads it.
            orientation = image.getexif().get(_ORIENTATION, 1)
            return _orient(_levels(image, data, kind, mode, dtype), orientation, apply_exif, True)
        levels = _levels(image, data, kind, mode, dtype)
        return _orient(levels, _orientation(image) if apply_exif else 1, apply_exif, False)


def _open(data: bytes, kind: str) -> Any:
    """Open an image of exactly this format, without decoding it.

    Unlike Image.open, this applies no limit to the number of pixels.
    """
    module, _, name = _PLUGINS[kind].partition(".")
    try:
        plugin = getattr(importlib.import_module(f"PIL.{module}"), name)
    except ImportError:
        raise CannotDecode(f"this Pillow cannot read {kind}: install a newer one") from None
    return plugin(io.BytesIO(data))


# --- pixels


def _levels(image: Any, data: bytes, kind: str, mode: str, dtype: str) -> Pixels:
    """Return the pixels as stored, before any rotation, (height, width, channels)."""
    deep = _deep_gray(image, kind)
    if deep is None and dtype == "uint16":
        deep = _deep_colour(image, data, kind)
    if deep is not None:
        return _of_dtype(_of_mode(deep, mode), dtype)
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
    if kind == "JPEG 2000" and max(_jpeg2000_sizes(data), default=7) >= 8:
        raise CannotDecode("JPEG 2000: more than 8 bits of colour, of which Pillow reads 8 alone")
    raw = _raw_mode(image)
    if ";16" not in raw:
        return None
    if raw == "LA;16B":
        with _open(_as_rgba(data), kind) as stored:
            pairs = np.asarray(stored).astype(np.uint16)
        return np.repeat(pairs[..., :1] << 8 | pairs[..., 1:2], 3, -1)
    other = raw[:-1] + _OTHER_BYTE[raw[-1]]
    if image.mode not in ("RGB", "RGBA") or "a;" in raw:
        raise CannotDecode(f"{kind}: 16 bits a sample as {raw}, of which Pillow reads 8 alone")
    with _open(data, kind) as low:
        low.tile = [tile._replace(args=_with_raw_mode(tile.args, other)) for tile in low.tile]
        both = _as_bytes(image, "RGB"), _as_bytes(low, "RGB")
    return both[0].astype(np.uint16) << 8 | both[1]


def _raw_mode(image: Any) -> str:
    """Return Pillow's raw mode, its name of the pixel layout in the file."""
    args = image.tile[0].args if image.tile else ""
    return str(args[0] if isinstance(args, tuple) and args else args or "")


def _with_raw_mode(args: Any, raw: str) -> Any:
    return (raw, *args[1:]) if isinstance(args, tuple) else raw


def _as_rgba(png: bytes) -> bytes:
    """Relabel a PNG of 16-bit gray and alpha as 8-bit RGBA, which has as many bytes per pixel."""
    header = png[12:24] + b"\x08\x06" + png[26:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def _deep_pnm(data: bytes) -> Pixels | None:
    """Decode a binary PGM or PPM of two bytes a sample to uint16; None for any other PNM."""
    header = _PNM.match(data)
    if header is None or not 255 < int(header["maxval"]) < 1 << 16:
        return None
    shape = int(header["height"]), int(header["width"]), 3 if header["kind"] == b"6" else 1
    if len(data) - header.end() < 2 * math.prod(shape):
        raise CannotDecode("PNM: it ends before its pixels do")
    stored = np.frombuffer(data, ">u2", math.prod(shape), header.end()).reshape(shape)
    highest = int(header["maxval"])
    if highest == (1 << 16) - 1:
        return stored.astype(np.uint16)
    wide = np.minimum(stored, highest).astype(np.uint32) * ((1 << 16) - 1)
    scaled: Pixels = ((wide + highest // 2) // highest).astype(np.uint16)
    return scaled


def _of_dtype(deep: Pixels, dtype: str) -> Pixels:
    return deep if dtype == "uint16" else (deep >> 8).astype(np.uint8)


def _of_mode(levels: Pixels, mode: str) -> Pixels:
    """Convert uint16 to the channels of a mode, with Pillow's integer luma of ITU-R BT.601."""
    if mode == "rgb":
        return levels if levels.shape[-1] == 3 else np.repeat(levels, 3, -1)
    if levels.shape[-1] == 1:
        return levels
    wide = levels.astype(np.uint32)
    gray = wide[..., 0] * 19595 + wide[..., 1] * 38470 + wide[..., 2] * 7471 + 0x8000
    return (gray >> 16).astype(np.uint16)[..., None]


def _depth(image: Any) -> str:
    if image.mode == "F":
        return "32-bit floats"
    raw = _raw_mode(image)
    return "signed 16-bit numbers" if "16" in raw else "32-bit integers"


def _check_jpeg2000(data: bytes) -> None:
    """Raise CannotDecode for signed numbers, to which Pillow adds half of their range."""
    signed = [size for size in _jpeg2000_sizes(data) if size & _SIGNED]
    if signed:
        bits = (max(signed) & ~_SIGNED) + 1
        raise CannotDecode(f"JPEG 2000: {bits}-bit signed integers, which have no range as pixels")


def _jpeg2000_sizes(data: bytes) -> bytes:
    """Return a byte per component: bits - 1, or'ed with _SIGNED; empty if there is no header."""
    at = data.find(_SIZ)
    count = int.from_bytes(data[at + 40 : at + 42], "big") if at >= 0 else 0
    return data[at + 42 : at + 42 + 3 * count : 3]


# --- TIFF


def _check_tiff(tags: Any, max_pixels: int | None) -> None:
    """Raise CannotDecode for TIFFs that Pillow accepts but reads wrong."""
    bits, formats = set(tags.get(_BITS, (1,))), set(tags.get(_SAMPLE_FORMAT, (1,)))
    if formats != {1}:
        names = {2: "signed integers", 3: "floats", 5: "complex integers", 6: "complex numbers"}
        kinds = ", ".join(sorted(names.get(n, "numbers of no known format") for n in formats - {1}))
        raise CannotDecode(f"TIFF: {max(bits)}-bit {kinds}, which have no range as pixels")
    if len(bits) > 1 or max(bits) > 16:
        sizes = counted(max(bits), "bit") if len(bits) == 1 else "different numbers of bits"
        raise CannotDecode(f"TIFF: {sizes} a sample, which have no range as pixels")
    if max(bits) > 8 and tags.get(_PLANAR, 1) == 2 and len(tags.get(_BITS, (1,))) > 1:
        raise CannotDecode("TIFF: planes of more than 8 bits, which Pillow reads wrong")
    if max(bits) > 8 and tags.get(_PHOTOMETRIC) == 0:
        raise CannotDecode("TIFF: more than 8 bits with 0 for white, which Pillow reads wrong")
    tile = tags.get(_TILE_LENGTH, 0), tags.get(_TILE_WIDTH, 0)
    check_pixels(*tile, max_pixels)


# --- EXIF


def _orientation(image: Any) -> int:
    """Return the EXIF orientation; 1 if there is none, or the EXIF data is damaged."""
    data = image.info.get("exif")
    if not isinstance(data, bytes):
        image.load()  # A PNG may have its EXIF data after its pixels.
        data = image.info.get("exif") or b""
    return exif.orientation(memoryview(data.removeprefix(b"Exif\0\0"))) or 1


def _orient(levels: Pixels, orientation: int, apply: bool, is_turned: bool) -> Pixels:
    """Rotate and flip by an EXIF orientation, or undo that, to match `apply`."""
    if apply == is_turned:
        return np.ascontiguousarray(levels)
    if is_turned:
        orientation = {6: 8, 8: 6}.get(orientation, orientation)
    if orientation in (5, 6, 7, 8):
        levels = levels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        levels = levels[::-1]
    if orientation in (2, 3, 6, 7):
        levels = levels[:, ::-1]
    return np.ascontiguousarray(levels)


# --- Pillow's own limit


_lifting, _lifted = threading.Lock(), 0
_limit: int | None = None


def _lift_limit_if_exceeded(pixels: int) -> AbstractContextManager[None]:
    """Lift Pillow's limit for an image of `pixels` pixels, if they exceed it."""
    limit = Image.MAX_IMAGE_PIXELS
    return nullcontext() if limit is None or pixels <= limit else _lift_limit()


@contextmanager
def _lift_limit() -> Iterator[None]:
    """Lift Pillow's limit until the last thread has left; only data.max_pixels limits."""
    global _lifted, _limit  # noqa: PLW0603  # Pillow's limit is a global, too
    with _lifting:
        if not _lifted:
            _limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _lifted += 1
    try:
        yield
    finally:
        with _lifting:
            _lifted -= 1
            if not _lifted:
                Image.MAX_IMAGE_PIXELS = _limit
