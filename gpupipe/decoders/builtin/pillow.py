"""Decodes files of all formats with Pillow, to the same pixels on every engine.

It decodes images that are not plain (see image_header.py), and those that no JPEG decoder accepts.
These rules hold on all engines, since all of them call this code:

- Only the first frame is decoded, and alpha is dropped.
- Images with floats, signed numbers or more than 16 bits per sample are rejected: no rule converts
  them to uint8 or uint16.
"""

import importlib
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from PIL import Image

from gpupipe.decoders.decoder import (
    CannotDecodeError,
    Decoder,
    Header,
    Pixels,
    apply_orientation,
    read_orientation,
)
from gpupipe.decoders.image_header import read_header
from gpupipe.decoders.libtiff import silence_errors
from gpupipe.decoders.pillow_pixels import check_supported, decode_deep_pnm, read_pixels, read_tile

_Result = TypeVar("_Result")
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
_ORIENTATION = 0x0112
_INVERSES = {6: 8, 8: 6}
"""The orientation that undoes a given orientation. Those not listed undo themselves."""
_MEANINGS = {
    "not identified by this driver": "damaged, or of a kind that Pillow does not read",
    "unknown pixel mode": "a depth, sign or number of channels that Pillow does not read",
    "decoder error": "damaged, or of a compression that Pillow does not read",
}
_COMPRESSIONS = {34712: "JPEG 2000", 34887: "LERC", 34933: "PNG", 50002: "JPEG XL"}
"""Names of TIFF compressions; Pillow's errors only contain their numbers."""


class Pillow(Decoder):
    """Decodes ten image formats with Pillow, also many files that are odd or damaged."""

    place = 50

    def probe(self, data: Any) -> Header | None:
        header = read_header(data)
        if header.is_plain:
            return header
        if header.format not in _PLUGINS:
            return None
        content = bytes(data)
        return _call(header.format, lambda: _probe(header, content))

    def decode(
        self, header: Header, data: Any, *, mode: str, dtype: str, window: Any = None,
        out: Any = None,
    ) -> Pixels:  # fmt: skip
        content = bytes(data)
        if header.format == "TIFF":
            silence_errors()
        return _call(header.format, lambda: _decode(header, content, mode, dtype))


def _call(kind: str, function: Callable[[], _Result]) -> _Result:
    """Call a function that uses Pillow; raise its errors as CannotDecodeError in plain words."""
    try:
        try:
            return function()
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            with _lift_limit():
                return function()
    except (CannotDecodeError, MemoryError):
        raise
    except Exception as e:  # Pillow's readers raise anything: SyntaxError, KeyError, struct.error
        raise CannotDecodeError(f"{kind}: {_explain(e, kind)}") from e


def _explain(error: Exception, kind: str) -> str:
    """Return Pillow's error in plain words."""
    message = str(error) or type(error).__name__
    if message.isdigit() and kind == "TIFF":
        return f"compression {_COMPRESSIONS.get(int(message), message)}, which Pillow does not read"
    for prefix, meaning in _MEANINGS.items():
        if message.startswith(prefix):
            return f"{meaning} ({message})"
    return message


def open_image(data: bytes, kind: str) -> Any:
    """Open an image with Pillow's reader of the format `kind`, without decoding it.

    Unlike Image.open, this applies no limit to the number of pixels.
    """
    module, _, name = _PLUGINS[kind].partition(".")
    try:
        plugin = getattr(importlib.import_module(f"PIL.{module}"), name)
    except ImportError:
        raise CannotDecodeError(f"this Pillow cannot read {kind}: install a newer one") from None
    return plugin(io.BytesIO(data))


def _probe(header: Header, data: bytes) -> Header:
    """Return the header of an image that is not plain, as Pillow reads it without decoding.

    The size of the decoded image may differ from the size in this header.
    """
    kind = header.format
    with open_image(data, kind) as image:
        return header._replace(
            height=image.height,
            width=image.width,
            orientation=_read_orientation(image, data, kind),
            channels=header.channels or len(image.getbands()),
            tile=read_tile(image, kind),
        )


def _decode(header: Header, data: bytes, mode: str, dtype: str) -> Pixels:
    kind = header.format
    with open_image(data, kind) as image, _lift_limit_if_exceeded(image.width * image.height):
        check_supported(image, data, kind)
        if (deep := decode_deep_pnm(data, mode) if kind == "PNM" else None) is not None:
            return deep
        if kind == "JPEG" and mode == "gray":
            image.draft("L", image.size)  # Take the file's luma, as every other decoder does.
        pixels = read_pixels(image, lambda file: open_image(file, kind), data, kind, mode, dtype)
        if kind == "TIFF":  # Pillow rotates a TIFF while it reads it.
            inverse = _INVERSES.get(header.orientation, header.orientation)
            pixels = apply_orientation(pixels, inverse)
        return pixels


def _read_orientation(image: Any, data: bytes, kind: str) -> int:
    """Return the EXIF orientation; 1 if there is none, or the EXIF data is damaged."""
    if kind == "TIFF":
        tag = image.getexif().get(_ORIENTATION, 1)
        return tag if tag in range(1, 9) else 1
    exif = _find_exif_in_png(data) if kind == "PNG" else image.info.get("exif")
    exif = exif if isinstance(exif, bytes) else b""
    return read_orientation(memoryview(exif.removeprefix(b"Exif\0\0"))) or 1


def _find_exif_in_png(data: bytes) -> bytes:
    """Return the EXIF data of a PNG, which may follow its pixels; empty if there is none."""
    at, exif = 8, b""
    while at + 8 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"IEND":
            break
        exif = data[at + 8 : at + 8 + size] if kind == b"eXIf" else exif
        at += 12 + size
    return exif


_lifting, _lifted = threading.Lock(), 0
_limit: int | None = None


def _lift_limit_if_exceeded(pixels: int) -> AbstractContextManager[None]:
    """Lift Pillow's limit on pixels if an image of `pixels` pixels exceeds it."""
    limit = Image.MAX_IMAGE_PIXELS
    return nullcontext() if limit is None or pixels <= limit else _lift_limit()


@contextmanager
def _lift_limit() -> Iterator[None]:
    """Lift Pillow's limit on pixels while a thread is in this context; `data.max_pixels` stays."""
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
