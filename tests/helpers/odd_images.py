"""Images that are valid but odd, as bytes by kind."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from helpers.image_files import encoded

WIDTH, HEIGHT = 160, 120


Pixels = NDArray[Any]


def deep(image: Image.Image) -> Pixels:
    """uint16 (H, W) or (H, W, 3): the levels in the high byte, noise in the low one."""
    levels = np.asarray(image).astype(np.uint32)
    return (levels * 256 + np.random.default_rng(0).integers(0, 256, levels.shape)).astype(
        np.uint16
    )


def png16(pixels: Pixels) -> bytes:
    """A PNG of 16 bits a channel, which PIL cannot write in colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(
        ">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 2 if pixels.ndim == 3 else 0, 0, 0, 0
    )
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def with_alpha(image: Image.Image) -> Image.Image:
    made = image.copy()
    made.putalpha(Image.linear_gradient("L").resize(image.size))
    return made


@dataclass(frozen=True)
class Odd:
    """make: the bytes of the file.

    pil, torchvision: the most by which DALI's levels differ from theirs; None: they cannot read it.
    """

    make: Callable[[Image.Image], bytes]
    pil: int | None = 0
    torchvision: int | None = 0


def arithmetic(image: Image.Image) -> bytes:
    """Made with `jpegtran -arithmetic` of a drawn face, because PIL cannot write it."""
    return (Path(__file__).parents[1] / "data" / "arithmetic.jpg").read_bytes()


ODD: dict[str, Odd] = {
    "grayscale.jpg": Odd(lambda i: encoded(i.convert("L"), "JPEG")),
    "progressive.jpg": Odd(lambda i: encoded(i, "JPEG", progressive=True)),
    "arithmetic.jpg": Odd(arithmetic),
    "cmyk.jpg": Odd(lambda i: encoded(i.convert("CMYK"), "JPEG", quality=90)),
    "rgb.jpg": Odd(lambda i: encoded(i, "JPEG", keep_rgb=True)),
    "4_4_4.jpg": Odd(lambda i: encoded(i, "JPEG", subsampling=0)),
    "4_2_2.jpg": Odd(lambda i: encoded(i, "JPEG", subsampling=1)),
    "restart.jpg": Odd(lambda i: encoded(i, "JPEG", restart_marker_rows=1)),
    "mpo.jpg": Odd(lambda i: encoded(i, "MPO", save_all=True, append_images=[ImageOps.flip(i)])),
    "png_named.jpg": Odd(lambda i: encoded(i, "PNG")),
    "jpeg_named.png": Odd(lambda i: encoded(i, "JPEG")),
    "grayscale.png": Odd(lambda i: encoded(i.convert("L"), "PNG")),
    "one_bit.png": Odd(lambda i: encoded(i.convert("1"), "PNG")),
    "palette.png": Odd(lambda i: encoded(i.quantize(64), "PNG")),
    "palette_with_alpha.png": Odd(
        lambda i: encoded(i.quantize(64), "PNG", transparency=bytes([0] * 32 + [255] * 32))
    ),
    "alpha.png": Odd(lambda i: encoded(with_alpha(i), "PNG")),
    "gray_alpha.png": Odd(lambda i: encoded(with_alpha(i.convert("L")), "PNG")),
    "animated.png": Odd(
        lambda i: encoded(i, "PNG", save_all=True, append_images=[ImageOps.flip(i)])
    ),
    "lossy.webp": Odd(lambda i: encoded(i, "WEBP", quality=90)),
    "lossless.webp": Odd(lambda i: encoded(i, "WEBP", lossless=True)),
    "alpha.webp": Odd(lambda i: encoded(with_alpha(i), "WEBP", lossless=True)),
    "animated.webp": Odd(
        lambda i: encoded(i, "WEBP", save_all=True, append_images=[ImageOps.flip(i)]),
        torchvision=None,
    ),
    "rgb.bmp": Odd(lambda i: encoded(i, "BMP"), torchvision=None),
    "grayscale.bmp": Odd(lambda i: encoded(i.convert("L"), "BMP"), torchvision=None),
    "palette.bmp": Odd(lambda i: encoded(i.quantize(64), "BMP"), torchvision=None),
    "alpha.bmp": Odd(lambda i: encoded(with_alpha(i), "BMP"), torchvision=None),
    "rgb.tif": Odd(lambda i: encoded(i, "TIFF"), torchvision=None),
    "lzw.tif": Odd(lambda i: encoded(i, "TIFF", compression="tiff_lzw"), torchvision=None),
    "deflate.tif": Odd(
        lambda i: encoded(i, "TIFF", compression="tiff_adobe_deflate"), torchvision=None
    ),
    "jpeg.tif": Odd(lambda i: encoded(i, "TIFF", compression="jpeg"), torchvision=None),
    "fax.tif": Odd(
        lambda i: encoded(i.convert("1"), "TIFF", compression="group4"), torchvision=None
    ),
    "cmyk.tif": Odd(lambda i: encoded(i.convert("CMYK"), "TIFF"), torchvision=None),
    "alpha.tif": Odd(lambda i: encoded(with_alpha(i), "TIFF"), torchvision=None),
    "palette.tif": Odd(lambda i: encoded(i.quantize(64), "TIFF"), pil=1, torchvision=None),
    "pages.tif": Odd(
        lambda i: encoded(i, "TIFF", save_all=True, append_images=[ImageOps.flip(i)]),
        torchvision=None,
    ),
    "rgb.ppm": Odd(lambda i: encoded(i, "PPM"), torchvision=None),
    "grayscale.pgm": Odd(lambda i: encoded(i.convert("L"), "PPM"), torchvision=None),
    "rgb.jp2": Odd(lambda i: encoded(i, "JPEG2000"), torchvision=None),
    "codestream.jp2": Odd(lambda i: encoded(i, "JPEG2000", no_jp2=True), torchvision=None),
    "alpha.jp2": Odd(lambda i: encoded(with_alpha(i), "JPEG2000"), torchvision=None),
}


DEEP = {
    "grayscale_16.png": lambda i: png16(deep(i.convert("L"))),
    "rgb_16.png": lambda i: png16(deep(i)),
    "grayscale_16.tif": lambda i: encoded(Image.fromarray(deep(i.convert("L"))), "TIFF"),
}
