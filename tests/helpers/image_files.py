"""Image files as bytes."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """What Pillow writes in a format."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def turned(orientation: int) -> Image.Exif:
    """The EXIF data of an image that is turned so."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """The file that NumPy saves an array in."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
