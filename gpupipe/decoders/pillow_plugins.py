"""Open an image with Pillow's reader of one format, and without Pillow's limit of pixels."""

from __future__ import annotations

import importlib
import io
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from PIL import Image

from gpupipe.decoders.decoder import CannotDecodeError

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


def open_image(data: bytes, kind: str) -> Any:
    """Open an image of exactly this format, without decoding it.

    Unlike Image.open, this applies no limit to the number of pixels.
    """
    module, _, name = _PLUGINS[kind].partition(".")
    try:
        plugin = getattr(importlib.import_module(f"PIL.{module}"), name)
    except ImportError:
        raise CannotDecodeError(f"this Pillow cannot read {kind}: install a newer one") from None
    return plugin(io.BytesIO(data))


_lifting, _lifted = threading.Lock(), 0
_limit: int | None = None


def lift_limit_if_exceeded(pixels: int) -> AbstractContextManager[None]:
    """Lift Pillow's limit for an image of `pixels` pixels, if they exceed it."""
    limit = Image.MAX_IMAGE_PIXELS
    return nullcontext() if limit is None or pixels <= limit else lift_limit()


@contextmanager
def lift_limit() -> Iterator[None]:
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
