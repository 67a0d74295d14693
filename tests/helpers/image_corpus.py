"""Small image files of every kind that Pillow, tifffile, imagecodecs and OpenCV write here.

Each has the pixels that `decode` is to deliver. For lossless files they are those that were
written, so that no decoder judges itself. For lossy files they are what Pillow reads or, of those
that Pillow cannot read, imagecodecs.
"""

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import imagecodecs
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from helpers import image_files
from helpers.image_files import png_chunk

WIDTH, HEIGHT = 25, 17
ARITHMETIC = Path(__file__).parents[1] / "data" / "arithmetic.jpg"
Pixels = NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """An image file.

    kind: its format.
    data: its bytes.
    levels: uint8 or uint16 (height, width, 1 or 3), as stored; None if no decoder may deliver it,
        because its numbers have no range as pixels or its format is none of gpupipe's.
    orientation: of its EXIF tag.
    luma: the gray of a JPEG, (height, width, 1), which is not computed from its colours.
    """

    kind: str
    data: bytes = field(repr=False)
    levels: Pixels | None = field(repr=False)
    orientation: int = 1
    luma: Pixels | None = field(default=None, repr=False)

    def expected(self, mode: str = "rgb", dtype: str = "uint8", exif: bool = False) -> Pixels:
        """(channels, height, width), by the rules of docs/formats.md."""
        assert self.levels is not None
        levels = self.levels
        if mode == "gray":
            levels = as_gray(levels) if self.luma is None else self.luma
        elif levels.shape[-1] == 1:
            levels = np.repeat(levels, 3, -1)
        if exif:
            levels = turned(levels, self.orientation)
        if levels.dtype == np.uint16:
            levels = levels if dtype == "uint16" else (levels >> 8).astype(np.uint8)
        elif dtype == "uint16":
            levels = levels.astype(np.uint16) * 257
        return np.ascontiguousarray(levels.transpose(2, 0, 1))


def as_gray(levels: Pixels) -> Pixels:
    """Rec. 601's luma."""
    if levels.shape[-1] == 1:
        return levels
    gray = levels.astype(np.float64) @ [0.299, 0.587, 0.114]
    return np.rint(gray).astype(levels.dtype)[..., None]


def turned(levels: Pixels, orientation: int) -> Pixels:
    """Upright, of pixels that are stored with this orientation."""
    quarters, mirrored = {
        1: (0, 0), 2: (0, 1), 3: (2, 0), 4: (2, 1), 5: (3, 1), 6: (3, 0), 7: (1, 1), 8: (1, 0),
    }[orientation]  # fmt: skip
    upright = np.rot90(levels, quarters)
    return upright[:, ::-1] if mirrored else upright


def picture(seed: int = 0) -> Pixels:
    """uint8 (HEIGHT, WIDTH, 3): gradients with some noise."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    shades = np.stack([x * 9, y * 13, (x + y) * 5 + 20], -1) + 5 * seed
    noise = np.random.default_rng(seed).integers(0, 24, shades.shape)
    return ((shades + noise) % 256).astype(np.uint8)


def deep(levels: Pixels, bits: int = 16) -> Pixels:
    """uint16, of so many bits: the levels in the highest, noise in the others."""
    noise = np.random.default_rng(1).integers(0, 1 << (bits - 8), levels.shape)
    return (levels.astype(np.uint16) << (bits - 8) | noise).astype(np.uint16)


def widened(levels: Pixels, bits: int) -> Pixels:
    """uint16 of the full range, of numbers of so many bits."""
    return np.rint(levels.astype(np.float64) * 65535 / ((1 << bits) - 1)).astype(np.uint16)


RGB = picture()
GRAY = as_gray(RGB)
BITS = ((GRAY > 120) * 255).astype(np.uint8)
ALPHA = ((np.mgrid[:HEIGHT, :WIDTH].sum(0) * 6)[..., None]).astype(np.uint8)
RGBA = np.concatenate([RGB, ALPHA], -1)
LA = np.concatenate([GRAY, ALPHA], -1)
PALETTE = Image.fromarray(RGB).quantize(64, dither=Image.Dither.NONE)
COLOURS = np.asarray(PALETTE.convert("RGB"))
CMYK = np.concatenate([255 - RGB, (ALPHA // 4)], -1)
OF_CMYK = np.asarray(Image.frombytes("CMYK", (WIDTH, HEIGHT), CMYK.tobytes()).convert("RGB"))


def image(levels: Pixels, mode: str | None = None) -> Image.Image:
    flat = levels[..., 0] if levels.shape[-1] == 1 else levels
    made = Image.fromarray(np.ascontiguousarray(flat))
    return made if mode is None else made.convert(mode)


def encoded(source: Pixels | Image.Image, form: str, **options: Any) -> bytes:
    """What Pillow writes."""
    picture = source if isinstance(source, Image.Image) else image(source)
    return image_files.encoded(picture, form, **options)


def by_opencv(levels: Pixels, extension: str, *options: int) -> bytes:
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[levels.shape[-1]]
    written, data = cv2.imencode(extension, np.ascontiguousarray(levels[..., order]), options)
    assert written, extension
    return data.tobytes()


def by_pillow(data: bytes, mode: str = "RGB") -> Pixels:
    """The judge of lossy files."""
    with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as opened:
        warnings.simplefilter("ignore")
        if mode == "L":
            opened.draft("L", opened.size)
        levels = np.asarray(opened.convert(mode))
    return levels if levels.ndim == 3 else levels[..., None]


def exif_of(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def frames(count: int = 3) -> dict[str, Any]:
    """What makes Pillow write an animation behind a first frame."""
    return {"save_all": True, "append_images": [image(picture(n)) for n in range(1, count)]}


# --- the formats


def jpegs() -> dict[str, Sample]:
    written = {
        **{
            f"baseline {n}": encoded(RGB, "JPEG", subsampling=n)
            for n in ("4:4:4", "4:2:2", "4:2:0")
        },
        "gray": encoded(GRAY, "JPEG"),
        "progressive": encoded(RGB, "JPEG", progressive=True),
        "progressive gray": encoded(GRAY, "JPEG", progressive=True),
        "optimized": encoded(RGB, "JPEG", optimize=True),
        "quality 1": encoded(RGB, "JPEG", quality=1),
        "quality 100": encoded(RGB, "JPEG", quality=100, subsampling=0),
        "restart markers": encoded(RGB, "JPEG", restart_marker_blocks=1),
        "ICC profile": encoded(RGB, "JPEG", icc_profile=bytes(200)),
        "comment": encoded(RGB, "JPEG", comment=b"x" * 300),
        "RGB": encoded(RGB, "JPEG", keep_rgb=True),
        "CMYK": encoded(Image.frombytes("CMYK", (WIDTH, HEIGHT), CMYK.tobytes()), "JPEG"),
        "MPO": encoded(RGB, "MPO", **frames()),
        "by OpenCV": by_opencv(RGB, ".jpg"),
        "progressive by OpenCV": by_opencv(RGB, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        "arithmetic coding": arithmetic(),
        **{
            f"{name} by OpenCV": by_opencv(RGB, ".jpg", cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor)
            for name, factor in (("4:1:1", 0x411111), ("4:4:0", 0x121111))
        },
        "YCCK": imagecodecs.jpeg8_encode(CMYK, 90, colorspace="CMYK", outcolorspace="YCCK"),
    }
    made = {name: lossy("JPEG", data, by_pillow(data, "L")) for name, data in written.items()}
    del made["CMYK"], made["YCCK"], made["RGB"]
    for name in ("CMYK", "YCCK", "RGB"):
        made[name] = lossy("JPEG", written[name])
    wide = deep(RGB, 12)
    twelve = imagecodecs.jpeg8_encode(wide, 95, bitspersample=12)
    made["12 bits"] = Sample("JPEG", twelve, widened(imagecodecs.jpeg8_decode(twelve), 12))
    twelve = imagecodecs.jpeg8_encode(deep(GRAY, 12)[..., 0].copy(), 95, bitspersample=12)
    gray = imagecodecs.jpeg8_decode(twelve)[..., None]
    made["12 bits gray"] = Sample("JPEG", twelve, widened(gray, 12))
    made["lossless"] = Sample("JPEG", imagecodecs.jpeg8_encode(RGB, lossless=True), RGB)
    made["lossless gray"] = Sample("JPEG", imagecodecs.ljpeg_encode(GRAY[..., 0].copy()), GRAY)
    sixteen = imagecodecs.jpeg8_encode(deep(RGB), lossless=True, bitspersample=16)
    made["lossless 16 bits"] = Sample("JPEG", sixteen, deep(RGB))
    sixteen = imagecodecs.ljpeg_encode(deep(GRAY)[..., 0].copy(), bitspersample=16)
    made["lossless 16 bits gray"] = Sample("JPEG", sixteen, deep(GRAY))
    return made


def lossy(kind: str, data: bytes, luma: Pixels | None = None, orientation: int = 1) -> Sample:
    return Sample(kind, data, by_pillow(data), orientation, luma)


def arithmetic() -> bytes:
    """The frame of a larger one made smaller: its first blocks, in other places."""
    data = ARITHMETIC.read_bytes()
    at = data.index(b"\xff\xc9")
    return data[: at + 5] + struct.pack(">HH", HEIGHT, WIDTH) + data[at + 9 :]


def png(levels: Pixels, colour: int, *chunks: bytes, interlace: int = 0) -> bytes:
    """A PNG of 8 or 16 bits, with further chunks in front of its pixels."""
    bits = 8 * levels.dtype.itemsize
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour, 0, 0, interlace)
    passes = [
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ]
    parts = [levels[y::h, x::w] for y, x, h, w in passes] if interlace else [levels]
    rows = b"".join(
        b"\0" + row.astype(f">u{bits // 8}").tobytes() for part in parts for row in part
    )
    start = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + b"".join(chunks)
    return start + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def pngs() -> dict[str, Sample]:
    made = {
        "gray": (encoded(GRAY, "PNG"), GRAY),
        "RGB": (encoded(RGB, "PNG"), RGB),
        "gray and alpha": (encoded(LA, "PNG"), GRAY),
        "RGBA": (encoded(RGBA, "PNG"), RGB),
        "1 bit": (encoded(image(BITS, "1"), "PNG"), BITS),
        "palette": (encoded(PALETTE, "PNG"), COLOURS),
        "palette with alpha": (encoded(PALETTE, "PNG", transparency=bytes(range(64))), COLOURS),
        "RGB with a transparent colour": (png(RGB, 2, png_chunk(b"tRNS", bytes(6))), RGB),
        "gray with a transparent level": (png(GRAY, 0, png_chunk(b"tRNS", bytes(2))), GRAY),
        "RGB with gamma": (png(RGB, 2, png_chunk(b"gAMA", struct.pack(">I", 100000))), RGB),
        "RGB interlaced": (png(RGB, 2, interlace=1), RGB),
        "16 bits RGB interlaced": (png(deep(RGB), 2, interlace=1), deep(RGB)),
        "16 bits gray": (png(deep(GRAY), 0), deep(GRAY)),
        "16 bits RGB": (png(deep(RGB), 2), deep(RGB)),
        "16 bits gray and alpha": (png(deep(LA), 4), deep(LA)[..., :1]),
        "16 bits RGBA": (png(deep(RGBA), 6), deep(RGBA)[..., :3]),
        "16 bits RGB with a transparent colour": (
            png(deep(RGB), 2, png_chunk(b"tRNS", bytes(6))),
            deep(RGB),
        ),
        "APNG": (encoded(RGB, "PNG", **frames()), RGB),
        "APNG with a default image": (encoded(RGB, "PNG", default_image=True, **frames()), RGB),
        "by OpenCV": (by_opencv(RGB, ".png"), RGB),
        "16 bits RGBA by OpenCV": (by_opencv(deep(RGBA), ".png"), deep(RGBA)[..., :3]),
        "1 bit by OpenCV": (by_opencv(BITS, ".png", cv2.IMWRITE_PNG_BILEVEL, 1), BITS),
    }
    for bits in (1, 2, 4):
        few = Image.fromarray(RGB).quantize(1 << bits, dither=Image.Dither.NONE)
        made[f"palette of {bits} bits"] = (
            encoded(few, "PNG", bits=bits),
            np.asarray(few.convert("RGB")),
        )
    return {name: Sample("PNG", *each) for name, each in made.items()}


def webps() -> dict[str, Sample]:
    with_alpha = RGBA | np.array([0, 0, 0, 1], np.uint8)  # or WebP drops what is under alpha 0
    written = {
        "lossy": encoded(RGB, "WEBP"),
        "lossy with alpha": encoded(with_alpha, "WEBP"),
        "by OpenCV": by_opencv(RGB, ".webp", cv2.IMWRITE_WEBP_QUALITY, 60),
        "animated": encoded(RGB, "WEBP", **frames()),
        "with ICC profile": encoded(RGB, "WEBP", icc_profile=bytes(200)),
    }
    made = {name: lossy("WebP", data) for name, data in written.items()}
    made["lossless"] = Sample("WebP", encoded(RGB, "WEBP", lossless=True), RGB)
    opaque = encoded(with_alpha, "WEBP", lossless=True, exact=True)
    made["lossless with alpha"] = Sample("WebP", opaque, RGB)
    made["lossless animated"] = Sample("WebP", encoded(RGB, "WEBP", lossless=True, **frames()), RGB)
    made["lossless by OpenCV"] = Sample(
        "WebP", by_opencv(RGB, ".webp", cv2.IMWRITE_WEBP_QUALITY, 101), RGB
    )
    return made


def with_exif() -> dict[str, Sample]:
    made = {}
    for n in range(1, 9):
        data = encoded(RGB, "JPEG", exif=exif_of(n))
        made[f"JPEG, EXIF {n}"] = lossy("JPEG", data, by_pillow(data, "L"), n)
        made[f"PNG, EXIF {n}"] = Sample("PNG", encoded(RGB, "PNG", exif=exif_of(n)), RGB, n)
        data = encoded(RGB, "WEBP", lossless=True, exif=exif_of(n))
        made[f"WebP, EXIF {n}"] = Sample("WebP", data, RGB, n)
        tiff = encoded(RGB, "TIFF", exif=exif_of(n))
        made[f"TIFF, EXIF {n}"] = Sample("TIFF", tiff, RGB, n)
    return made


_FORMATS: dict[str, Callable[[], dict[str, Sample]]] = {"JPEG": jpegs, "PNG": pngs, "WebP": webps}


def corpus() -> dict[str, Sample]:
    """All samples by name, which begins with the format."""
    from helpers import image_corpus_other, image_corpus_tiff

    formats = _FORMATS | {"TIFF": image_corpus_tiff.tiffs} | image_corpus_other.FORMATS
    found = {f"{kind}, {name}": s for kind, make in formats.items() for name, s in make().items()}
    return found | with_exif()
