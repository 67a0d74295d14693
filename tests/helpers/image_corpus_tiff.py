"""The TIFFs of image_corpus.py: by tifffile, Pillow and OpenCV."""

import io
from typing import Any

import numpy as np
import tifffile

from helpers.image_corpus import (
    BITS,
    CMYK,
    COLOURS,
    GRAY,
    LA,
    OF_CMYK,
    PALETTE,
    RGB,
    RGBA,
    Pixels,
    Sample,
    by_opencv,
    deep,
    encoded,
    frames,
    image,
    lossy,
    widened,
)

LOSSLESS = ("lzw", "zlib", "packbits", "lzma", "zstd", "lerc", "jpegxl", "png")


def written(levels: Pixels, **options: Any) -> bytes:
    """What tifffile writes of (height, width, channels), or of (channels, height, width) in
    planes.
    """
    buffer = io.BytesIO()
    if options.get("planarconfig") == "separate":
        levels = np.ascontiguousarray(levels.transpose(2, 0, 1))
    elif levels.shape[-1] == 1:
        levels = levels[..., 0]
    tifffile.imwrite(buffer, levels, metadata=None, **options)
    return buffer.getvalue()


Files = dict[str, tuple[bytes, Pixels | None]]
_COLOUR: dict[str, Any] = {"photometric": "rgb"}
_NUMBERS = (
    "int8",
    "int16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
)


def tiffs() -> dict[str, Sample]:
    files = _of_depth("", GRAY, RGB, LA, RGBA)
    files |= _of_depth("16 bits ", deep(GRAY), deep(RGB), deep(LA), deep(RGBA))
    files |= _without_range() | _of_few_bits() | _by_others()
    return {name: Sample("TIFF", *each) for name, each in files.items()} | _lossy()


def _of_depth(depth: str, gray: Pixels, rgb: Pixels, la: Pixels, rgba: Pixels) -> Files:
    """What 8 and 16 bits have in common."""
    highest = np.iinfo(gray.dtype).max
    opaque = np.concatenate([rgb, np.full_like(gray, highest)], -1)
    five = np.concatenate([rgb, la], -1)
    planes: dict[str, Any] = _COLOUR | {"planarconfig": "separate"}
    lossless = {"compression": "jpeg2000", "compressionargs": {"reversible": True}}
    made = {
        "gray": written(gray),
        "gray, 0 is white": written(highest - gray, photometric="miniswhite"),
        "gray and alpha": written(la, photometric="minisblack", extrasamples=["unassalpha"]),
        "gray in tiles": written(gray, tile=(16, 16)),
        "gray big endian": written(gray, byteorder=">"),
        "gray Deflate with predictor": written(gray, compression="zlib", predictor=True),
        "2 channels": written(la, photometric="minisblack", extrasamples=["unspecified"]),
        "RGB": written(rgb, **_COLOUR),
        "RGBA": written(rgba, extrasamples=["unassalpha"], **_COLOUR),
        "RGBA, alpha multiplied": written(opaque, extrasamples=["assocalpha"], **_COLOUR),
        "5 channels": written(five, extrasamples=["unspecified"] * 2, **_COLOUR),
        "RGB in planes": written(rgb, **planes),
        "RGB in tiles": written(rgb, tile=(16, 16), **_COLOUR),
        "RGB in tiled planes": written(rgb, tile=(16, 16), **planes),
        "RGB in strips": written(rgb, rowsperstrip=3, **_COLOUR),
        "RGB big endian": written(rgb, byteorder=">", **_COLOUR),
        "RGB BigTIFF": written(rgb, bigtiff=True, **_COLOUR),
        "RGB LZW with predictor": written(rgb, compression="lzw", predictor=True, **_COLOUR),
        "RGB JPEG 2000": written(rgb, **lossless, **_COLOUR),
    }
    for name in LOSSLESS:
        made[f"RGB {name}"] = written(rgb, compression=name, **_COLOUR)
        made[f"gray {name}"] = written(gray, compression=name)
    is_gray = ("gray", "2 channels")
    return {f"{depth}{n}": (d, gray if n.startswith(is_gray) else rgb) for n, d in made.items()}


def _without_range() -> Files:
    made = {}
    for name in _NUMBERS:
        made[f"{name} gray"] = written(GRAY.astype(name), photometric="minisblack")
        made[f"{name} RGB"] = written(RGB.astype(name), **_COLOUR)
    tiles: dict[str, Any] = _COLOUR | {"tile": (16, 16), "planarconfig": "separate"}
    made["float32 RGB in tiled planes"] = written(RGB.astype(np.float32), **tiles)
    predicted = written(GRAY.astype(np.float32), compression="lzw", predictor=True)
    made["float32 gray LZW with predictor"] = predicted
    made["float32 RGB by OpenCV"] = by_opencv(RGB.astype(np.float32), ".tiff")
    made["float64 RGB by OpenCV"] = by_opencv(RGB.astype(np.float64), ".tiff")
    return {name: (data, None) for name, data in made.items()}


def _of_few_bits() -> Files:
    made: Files = {
        "1 bit": (written(BITS > 0, photometric="minisblack"), BITS),
        "1 bit, 0 is white": (written(BITS == 0, photometric="miniswhite"), BITS),
    }
    for bits in (2, 4, 10, 12, 14):
        few = GRAY >> (8 - bits) if bits < 8 else deep(GRAY, bits)
        narrow = np.rint(few * (255 / ((1 << bits) - 1))).astype(np.uint8)
        full = widened(few, bits) if bits > 8 else narrow
        made[f"{bits} bits gray"] = written(few, bitspersample=bits, photometric="minisblack"), full
    for name in ("group3", "group4", "tiff_ccitt", "packbits", "tiff_lzw", "tiff_deflate"):
        made[f"1 bit {name}"] = encoded(image(BITS, "1"), "TIFF", compression=name), BITS
    return made


def _by_others() -> Files:
    """CMYK, palettes, and what Pillow and OpenCV write."""
    colours = np.zeros((256, 3), np.uint16)
    stored = np.array(PALETTE.getpalette("RGB"), np.uint16).reshape(-1, 3)
    colours[: len(stored)] = stored * 257
    indices = np.asarray(PALETTE)[..., None]
    wide = CMYK.astype(np.uint16) * 257
    return {
        "CMYK": (written(CMYK, photometric="separated"), OF_CMYK),
        "16 bits CMYK": (written(wide, photometric="separated"), OF_CMYK.astype(np.uint16) * 257),
        "palette": (encoded(PALETTE, "TIFF"), COLOURS),
        "palette by tifffile": (
            written(indices, photometric="palette", colormap=colours.T),
            COLOURS,
        ),
        "pages": (encoded(RGB, "TIFF", **frames()), RGB),
        "RGB by OpenCV": (by_opencv(RGB, ".tiff"), RGB),
        "RGBA by OpenCV": (by_opencv(RGBA, ".tiff"), RGB),
        "16 bits RGB by OpenCV": (by_opencv(deep(RGB), ".tiff"), deep(RGB)),
    }


def _lossy() -> dict[str, Sample]:
    halved = {"compressionargs": {"outcolorspace": "ycbcr"}, "subsampling": (2, 2)}
    made = {
        "RGB JPEG": encoded(RGB, "TIFF", compression="jpeg"),
        "YCbCr JPEG": written(RGB, compression="jpeg", **halved, **_COLOUR),
        "gray JPEG": written(GRAY, compression="jpeg"),
        "CIELAB": written(RGB, photometric="cielab"),
        "YCbCr": encoded(image(RGB, "YCbCr"), "TIFF"),
    }
    webp = written(RGB, compression="webp", **_COLOUR)
    read = Sample("TIFF", webp, tifffile.imread(io.BytesIO(webp)))
    return {name: lossy("TIFF", data) for name, data in made.items()} | {"RGB WebP": read}
