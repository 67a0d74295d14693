"""Image files as bytes."""

import io
import struct
import zlib
from typing import Any

from PIL import Image


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """What Pillow writes in a format."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
