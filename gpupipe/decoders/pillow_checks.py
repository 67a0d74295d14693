"""Reject images that Pillow reads wrong, or whose samples have no meaning as pixels."""

from __future__ import annotations

from typing import Any

from gpupipe.decoders.decoder import CannotDecodeError
from gpupipe.decoders.image_header import check_pixels
from gpupipe.errors import counted

_BITS, _PHOTOMETRIC, _PLANAR, _TILE_WIDTH, _TILE_LENGTH, _SAMPLE_FORMAT = (
    258,
    262,
    284,
    322,
    323,
    339,
)
_SIZ, _SIGNED = b"\xff\x4f\xff\x51", 0x80


def check_supported(image: Any, data: bytes, kind: str, max_pixels: int | None) -> None:
    """Raise CannotDecodeError if Pillow opens an image, but cannot read its pixels right.

    Args:
        image: Pillow's image, not loaded yet.
        data: The bytes of the file.
        kind: The format, as in `ImageHeader.format`.
        max_pixels: The most pixels to accept, also of a tile; None is no limit.
    """
    check_pixels(image.height, image.width, max_pixels)
    if kind == "TIFF":
        _check_tiff(image.tag_v2, max_pixels)
    if kind == "JPEG 2000":
        _check_jpeg2000(data)
    if image.mode == "F" or (image.mode == "I" and kind not in ("PNM", "PNG")):
        raise CannotDecodeError(f"{kind}: {_describe_depth(image)}, which have no range as pixels")


def get_raw_mode(image: Any) -> str:
    """Return Pillow's raw mode, its name of the pixel layout in the file."""
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
    """Return a byte per component: bits - 1, or'ed with _SIGNED; empty if there is no header."""
    at = data.find(_SIZ)
    count = int.from_bytes(data[at + 40 : at + 42], "big") if at >= 0 else 0
    return data[at + 42 : at + 42 + 3 * count : 3]


def _check_tiff(tags: Any, max_pixels: int | None) -> None:
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
    tile = tags.get(_TILE_LENGTH, 0), tags.get(_TILE_WIDTH, 0)
    check_pixels(*tile, max_pixels)


def _describe_depth(image: Any) -> str:
    if image.mode == "F":
        return "32-bit floats"
    raw = get_raw_mode(image)
    return "signed 16-bit numbers" if "16" in raw else "32-bit integers"
