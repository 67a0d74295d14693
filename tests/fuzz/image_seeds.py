"""Image files that nothing is wrong with, of the five formats that are fuzzed, and bombs: small
files of large images.
"""

import functools
import io
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

SUFFIXES = {"JPEG": "jpg", "PNG": "png", "WebP": "webp", "TIFF": "tif", "BMP": "bmp"}
_EXIF = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"


class Seed(NamedTuple):
    """A whole file. format: a key of SUFFIXES."""

    format: str
    content: bytes


_KINDS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "JPEG": [
        ("RGB", {"quality": 90}),
        ("RGB", {"subsampling": 0, "optimize": True}),
        ("RGB", {"progressive": True}),
        ("L", {}),
        ("L", {"progressive": True}),
        ("RGB", {"subsampling": 1, "restart_marker_blocks": 3}),
        ("RGB", {"exif": _EXIF}),
        ("CMYK", {}),
    ],
    "PNG": [
        ("RGB", {}),
        ("L", {}),
        ("P", {}),
        ("RGBA", {}),
        ("LA", {}),
        ("1", {}),
        ("I;16", {}),
        ("RGB", {"exif": _EXIF}),
    ],
    "WebP": [
        ("RGB", {}),
        ("RGB", {"lossless": True}),
        ("RGBA", {}),
        ("RGBA", {"lossless": True}),
        ("RGB", {"exif": _EXIF}),
        ("RGB", {"save_all": True, "append_images": [Image.new("RGB", (48, 48), "red")]}),
    ],
    "TIFF": [
        ("RGB", {}),
        ("RGB", {"compression": "tiff_lzw"}),
        ("RGB", {"compression": "tiff_adobe_deflate"}),
        ("RGB", {"compression": "jpeg"}),
        ("RGB", {"compression": "packbits", "big_tiff": True}),
        ("L", {}),
        ("P", {"compression": "tiff_lzw"}),
        ("1", {"compression": "group4"}),
        ("RGBA", {}),
        ("I;16", {"compression": "tiff_adobe_deflate"}),
    ],
    "BMP": [("RGB", {}), ("L", {}), ("P", {}), ("1", {}), ("RGBA", {}), ("RLE", {})],
}


def seed(format: str, rng: np.random.Generator, photographs: Sequence[Image.Image] = ()) -> Seed:
    """A file of one of the kinds of a format, of 40 to 89 pixels a side; of 48 if it is
    animated.
    """
    mode, options = _KINDS[format][int(rng.integers(len(_KINDS[format])))]
    width, height = (48, 48) if "save_all" in options else rng.integers(40, 90, 2).tolist()
    image = _cut(photographs, rng, width, height) if photographs else _drawn(rng, width, height)
    return Seed(
        format, _rle(image) if mode == "RLE" else encoded(_in_mode(image, mode), format, **options)
    )


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def _drawn(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Waves of colour with some noise."""
    y, x = np.mgrid[:height, :width]
    period, phase = rng.uniform(4, 12), rng.uniform(0, 6, 3)
    waves = 128 + 90 * np.sin(x[..., None] / period + phase) * np.cos(y[..., None] / 9)
    noise = rng.integers(-20, 20, (height, width, 3))
    return Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8))


def _cut(
    photographs: Sequence[Image.Image], rng: np.random.Generator, width: int, height: int
) -> Image.Image:
    """A part of a photograph."""
    photograph = photographs[int(rng.integers(len(photographs)))]
    left, top = (
        int(rng.integers(room)) for room in (photograph.width - width, photograph.height - height)
    )
    return photograph.crop((left, top, left + width, top + height))


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 251)
    if mode in ("RGBA", "LA"):
        image = image.convert(mode)
        image.putalpha(Image.linear_gradient("L").resize(image.size))
        return image
    return image.convert(mode)


def _rle(image: Image.Image) -> bytes:
    """A BMP with run lengths of one pixel, which Pillow reads and does not write."""
    levels = np.asarray(image.convert("L"))[::-1]
    rows = b"".join(np.stack([np.ones_like(row), row], 1).tobytes() + b"\0\0" for row in levels)
    palette = b"".join(bytes((n, n, n, 0)) for n in range(256))
    return bmp(image.width, image.height, 8, 1, palette, rows + b"\0\1")


def bmp(
    width: int, height: int, bits: int, compression: int, palette: bytes, pixels: bytes
) -> bytes:
    start = 54 + len(palette)
    head = struct.pack("<2sIII", b"BM", start + len(pixels), 0, start)
    fields = (
        40,
        width,
        height,
        1,
        bits,
        compression,
        len(pixels),
        2835,
        2835,
        len(palette) // 4,
        0,
    )
    return head + struct.pack("<IiiHHIIiiII", *fields) + palette + pixels


# --- bombs


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    width: int, height: int, bits: int, colour: int, packed: bytes, before: bytes = b""
) -> bytes:
    """A PNG of these packed rows, with some chunks before them."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + before
        + png_chunk(b"IDAT", packed)
        + png_chunk(b"IEND", b"")
    )


def _zeros(count: int) -> bytes:
    packer = zlib.compressobj(9)
    step = 1 << 20
    parts = [packer.compress(bytes(min(step, count - at))) for at in range(0, count, step)]
    return b"".join(parts) + packer.flush()


def _flat_png(side: int, bits: int, colour: int) -> bytes:
    row = 1 + (side * bits * (3 if colour == 2 else 1) + 7) // 8
    return png(side, side, bits, colour, _zeros(row * side))


@functools.cache
def _metadata_bomb(name: bytes) -> bytes:
    """A PNG of one pixel with 200 MB of text, or of a colour profile, in a chunk of 200 kB."""
    head = {b"iTXt": b"key\0\1\0\0\0", b"zTXt": b"key\0\0", b"iCCP": b"key\0\0"}[name]
    return png(48, 48, 8, 0, _zeros(49 * 48), png_chunk(name, head + _zeros(200_000_000)))


@functools.cache
def _repeated_scans(side: int, count: int) -> bytes:
    """A progressive JPEG whose last scan comes `count` times: libjpeg decodes each of them."""
    data = encoded(Image.new("L", (side, side), 99), "JPEG", progressive=True)
    at, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:end] + data[at:end] * count + data[end:]


def _flat(format: str, side: int) -> bytes:
    options = {"WebP": {"lossless": True, "method": 0}, "TIFF": {"compression": "group4"}}
    mode = {"WebP": "RGB", "TIFF": "1"}.get(format, "L")
    return encoded(Image.new(mode, (side, side)), format, **options.get(format, {}))


@functools.cache
def _flat_bomb(kind: str, side: int) -> Seed:
    """A file of a large image of one colour."""
    bmp_row = ((side + 7) // 8 + 3) // 4 * 4
    make: dict[str, Callable[[], Seed]] = {
        "png 1": lambda: Seed("PNG", _flat_png(side, 1, 0)),
        "png 8": lambda: Seed("PNG", _flat_png(side, 8, 2)),
        "jpeg": lambda: Seed("JPEG", _flat("JPEG", side)),
        "webp": lambda: Seed("WebP", _flat("WebP", min(side, 16383))),
        "tiff": lambda: Seed("TIFF", _flat("TIFF", side)),
        "bmp": lambda: Seed("BMP", bmp(side, side, 1, 0, bytes(8), bytes(bmp_row * side))),
        "bmp rle": lambda: Seed("BMP", bmp(side, side, 8, 1, bytes(1024), b"\0\1")),
    }
    return make[kind]()


def bomb(rng: np.random.Generator, max_pixels: int) -> Seed:
    """A bomb: of a million pixels, just above max_pixels, or of 179 million; of metadata; or of
    scans.
    """
    kinds = [
        "png 1",
        "png 8",
        "jpeg",
        "webp",
        "tiff",
        "bmp",
        "bmp rle",
        "iTXt",
        "zTXt",
        "iCCP",
        "scans",
    ]
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind == "scans":
        return Seed("JPEG", _repeated_scans(1000, 2000))
    if kind in ("iTXt", "zTXt", "iCCP"):
        return Seed("PNG", _metadata_bomb(kind.encode()))
    sides = [1000, int(max_pixels**0.5) + 1, 13_400]
    return _flat_bomb(kind, sides[int(rng.integers(2 if kind in ("png 8", "jpeg") else 3))])
