"""Decode images with Pillow, to the same pixels on every engine.

This decodes the images that are not plain (see gpupipe.decoders.image_header), and all images with
`decoder: pil`. DALI decodes the others in gpupipe/engines/dali/ops.py, and torchvision in
gpupipe/steps/decode.py. Because every engine calls this code, these rules hold on all of them:

- Only the first frame is decoded, and alpha is dropped.
- 16 bits become 8 by dropping the low byte (value >> 8), as in Pillow, libpng and `to_dtype`. For
  uint16, 8 bits become 16 by * 257, so that 255 becomes 65,535.
- Floats, signed numbers and more than 16 bits a sample have no such rule, and are rejected.
- Pixels are rotated as EXIF says only on request. This holds for TIFF, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from gpupipe.decoders import exif
from gpupipe.decoders.decoder import CannotDecodeError
from gpupipe.decoders.pillow_checks import check_supported
from gpupipe.decoders.pillow_pixels import (
    Pixels,
    convert_dtype,
    convert_mode,
    decode_deep_pnm,
    read_pixels,
)
from gpupipe.decoders.pillow_plugins import lift_limit, lift_limit_if_exceeded, open_image

_ORIENTATION = 0x0112
_MEANINGS = {
    "not identified by this driver": "damaged, or of a kind that Pillow does not read",
    "unknown pixel mode": "a depth, sign or number of channels that Pillow does not read",
    "decoder error": "damaged, or of a compression that Pillow does not read",
}
_COMPRESSIONS = {34712: "JPEG 2000", 34887: "LERC", 34933: "PNG", 50002: "JPEG XL"}
"""Names of TIFF compressions that Pillow's errors call by their numbers."""


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
        CannotDecodeError: The image cannot be decoded, for whatever reason.
        MemoryError: There is not enough memory.
    """
    if not kind:
        head = bytes(memoryview(data).cast("B")[:16])
        raise CannotDecodeError(
            f"not an image in a known format (it begins with {head!r})"
            if head
            else "the file is empty"
        )
    arguments = bytes(data), kind, mode, dtype, apply_exif, max_pixels
    try:
        try:
            return _decode(*arguments)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            with lift_limit():
                return _decode(*arguments)
    except (CannotDecodeError, MemoryError):
        raise
    except Exception as e:  # Pillow's readers raise anything: SyntaxError, KeyError, struct.error
        raise CannotDecodeError(f"{kind}: {_explain(e, kind)}") from e


def _explain(error: Exception, kind: str) -> str:
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
    with open_image(data, kind) as image, lift_limit_if_exceeded(image.width * image.height):
        check_supported(image, data, kind, max_pixels)
        if (deep := decode_deep_pnm(data) if kind == "PNM" else None) is not None:
            return convert_dtype(convert_mode(deep, mode), dtype)
        if kind == "JPEG" and mode == "gray":
            image.draft("L", image.size)  # Take the file's luma, as every other decoder does.
        if kind == "TIFF":  # Pillow rotates a TIFF while it reads it.
            orientation = image.getexif().get(_ORIENTATION, 1)
            pixels = read_pixels(image, data, kind, mode, dtype)
            return _orient(pixels, orientation, apply_exif, is_turned=True)
        pixels = read_pixels(image, data, kind, mode, dtype)
        orientation = _read_orientation(image) if apply_exif else 1
        return _orient(pixels, orientation, apply_exif, is_turned=False)


def _read_orientation(image: Any) -> int:
    """Return the EXIF orientation; 1 if there is none, or the EXIF data is damaged."""
    data = image.info.get("exif")
    if not isinstance(data, bytes):
        image.load()  # A PNG may have its EXIF data after its pixels.
        data = image.info.get("exif") or b""
    return exif.read_orientation(memoryview(data.removeprefix(b"Exif\0\0"))) or 1


def _orient(pixels: Pixels, orientation: int, apply: bool, is_turned: bool) -> Pixels:
    """Rotate and flip by an EXIF orientation, or undo that, to match `apply`."""
    if apply == is_turned:
        return np.ascontiguousarray(pixels)
    if is_turned:
        orientation = {6: 8, 8: 6}.get(orientation, orientation)
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
