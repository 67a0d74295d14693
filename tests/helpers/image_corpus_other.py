"""The other formats of image_corpus.py, and those that gpupipe does not read."""

from typing import Any

import cv2
import imagecodecs
import numpy as np
from PIL import Image

from helpers.image_corpus import (
    BITS,
    COLOURS,
    GRAY,
    HEIGHT,
    LA,
    PALETTE,
    RGB,
    RGBA,
    WIDTH,
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


def jpeg2000s() -> dict[str, Sample]:
    made = {}
    for container in ("JP2", "J2K"):
        for name, levels in (("gray", GRAY), ("RGB", RGB), ("RGBA", RGBA), ("gray and alpha", LA)):
            for bits in (8, 10, 12, 16):
                wide = levels if bits == 8 else deep(levels, bits)
                data = imagecodecs.jpeg2k_encode(
                    wide, level=0, codecformat=container, bitspersample=bits, reversible=True
                )
                kept = wide[..., : 1 if levels.shape[-1] < 3 else 3]
                full = kept if bits == 8 else widened(kept, bits)
                title = f"{name} {container}" if bits == 8 else f"{bits} bits {name} {container}"
                made[title] = Sample("JPEG 2000", data, full)
    signed = imagecodecs.jpeg2k_encode(
        (GRAY[..., 0] - 128).astype(np.int8), level=0, reversible=True
    )
    made["signed gray"] = Sample("JPEG 2000", signed, None)
    made["RGB lossy"] = lossy("JPEG 2000", encoded(RGB, "JPEG2000", irreversible=True))
    made["RGB by Pillow"] = Sample("JPEG 2000", encoded(RGB, "JPEG2000"), RGB)
    tiled = encoded(RGB, "JPEG2000", tile_size=(16, 16))
    made["RGB in tiles"] = Sample("JPEG 2000", tiled, RGB)
    made["16 bits gray by Pillow"] = Sample(
        "JPEG 2000", encoded(deep(GRAY), "JPEG2000"), deep(GRAY)
    )
    return made


def bmps() -> dict[str, Sample]:
    made = {
        "1 bit": (encoded(image(BITS, "1"), "BMP"), BITS),
        "gray": (encoded(GRAY, "BMP"), GRAY),
        "palette": (encoded(PALETTE, "BMP"), COLOURS),
        "24 bits": (encoded(RGB, "BMP"), RGB),
        "32 bits": (encoded(RGBA, "BMP"), RGB),
        "32 bits by OpenCV": (by_opencv(RGBA, ".bmp"), RGB),
        "24 bits by OpenCV": (by_opencv(RGB, ".bmp"), RGB),
        "4 bits": (_bmp(4, 0), _sixteen()),
        "4 bits RLE": (_bmp(4, 2), _sixteen()),
        "8 bits RLE": (_bmp(8, 1), _sixteen()),
        "16 bits": (_bmp_555(), (RGB >> 3).astype(int) * 255 // 31),
    }
    return {
        name: Sample("BMP", data, np.asarray(levels, np.uint8))
        for name, (data, levels) in made.items()
    }


def _sixteen() -> Pixels:
    """In 16 levels of gray."""
    return (GRAY >> 4) * 17


def _bmp(bits: int, compression: int) -> bytes:
    """Sixteen levels of gray as palette; RLE in runs of one pixel."""
    rows = (GRAY >> 4)[::-1, :, 0]
    if compression == 1:
        pixels = b"".join(b"".join(bytes((1, v)) for v in row) + b"\0\0" for row in rows) + b"\0\1"
    elif compression == 2:
        pixels = b"".join(b"".join(bytes((1, v << 4)) for v in row) + b"\0\0" for row in rows)
        pixels += b"\0\1"
    else:
        wide = np.zeros((HEIGHT, -(-WIDTH // 8) * 8), np.uint8)
        wide[:, :WIDTH] = rows
        pixels = (wide[:, ::2] << 4 | wide[:, 1::2]).tobytes()
    palette = b"".join(bytes((17 * n, 17 * n, 17 * n, 0)) for n in range(16))
    return _bmp_file(bits, compression, palette, pixels)


def _bmp_555() -> bytes:
    red, green, blue = ((RGB >> 3).astype(np.uint16)[::-1, :, n] for n in range(3))
    wide = np.zeros((HEIGHT, WIDTH + 1), "<u2")
    wide[:, :WIDTH] = red << 10 | green << 5 | blue
    return _bmp_file(16, 0, b"", wide.tobytes())


def _bmp_file(bits: int, compression: int, palette: bytes, pixels: bytes) -> bytes:
    def le(*numbers: tuple[int, int]) -> bytes:
        return b"".join(number.to_bytes(size, "little") for number, size in numbers)

    at = 54 + len(palette)
    info = le(
        (40, 4),
        (WIDTH, 4),
        (HEIGHT, 4),
        (1, 2),
        (bits, 2),
        (compression, 4),
        (len(pixels), 4),
        (2835, 4),
        (2835, 4),
        (len(palette) // 4, 4),
        (0, 4),
    )
    return b"BM" + le((at + len(pixels), 4), (0, 4), (at, 4)) + info + palette + pixels


def gifs() -> dict[str, Sample]:
    made = {
        "palette": (encoded(PALETTE, "GIF", interlace=0), COLOURS),
        "palette with a transparent colour": (encoded(PALETTE, "GIF", transparency=3), COLOURS),
        "interlaced": (encoded(PALETTE, "GIF", interlace=1), COLOURS),
        "gray": (encoded(GRAY, "GIF"), GRAY),
        "animated": (
            encoded(PALETTE, "GIF", save_all=True, append_images=[PALETTE.rotate(180)]),
            COLOURS,
        ),
    }
    found = {name: Sample("GIF", *each) for name, each in made.items()}
    found["by OpenCV"] = lossy("GIF", by_opencv(RGB, ".gif"))
    return found


def pnms() -> dict[str, Sample]:
    def text(kind: int, levels: Pixels, highest: int | None) -> bytes:
        head = f"P{kind}\n# a comment\n{WIDTH} {HEIGHT}\n" + (f"{highest}\n" if highest else "")
        return (head + " ".join(map(str, levels.reshape(-1).tolist())) + "\n").encode()

    def binary(kind: int, levels: Pixels, highest: int) -> bytes:
        wide = levels.astype(">u2" if highest > 255 else np.uint8)
        return b"P%d %d %d %d\n" % (kind, WIDTH, HEIGHT, highest) + wide.tobytes()

    packed = np.packbits(BITS[..., 0] == 0, axis=1).tobytes()
    made: dict[str, tuple[bytes, Pixels]] = {
        "P1": (text(1, (BITS == 0).astype(int), None), BITS),
        "P4": (b"P4\n%d %d\n" % (WIDTH, HEIGHT) + packed, BITS),
        "P5 by OpenCV": (by_opencv(GRAY, ".pgm"), GRAY),
        "P6 by OpenCV": (by_opencv(RGB, ".ppm"), RGB),
    }
    for (plain, raw), levels in (((2, 5), GRAY), ((3, 6), RGB)):
        for highest in (15, 100, 255, 256, 1000, 4095, 65535):
            stored = np.rint(levels / 255 * highest).astype(np.int64)
            whole = stored * (65535 if highest > 255 else 255) / highest
            full = np.rint(whole).astype(np.uint16 if highest > 255 else np.uint8)
            made[f"P{plain} maxval {highest}"] = text(plain, stored, highest), full
            made[f"P{raw} maxval {highest}"] = binary(raw, stored, highest), full
    return {name: Sample("PNM", *each) for name, each in made.items()}


def avifs() -> dict[str, Sample]:
    written = {
        "RGB": encoded(RGB, "AVIF"),
        "RGBA": encoded(RGBA, "AVIF"),
        "gray": encoded(GRAY, "AVIF", subsampling="4:0:0"),
        "RGB 4:4:4": encoded(RGB, "AVIF", subsampling="4:4:4"),
        "animated": encoded(RGB, "AVIF", **frames()),
        "by OpenCV": by_opencv(RGB, ".avif"),
        **{
            f"{bits} bits by OpenCV": by_opencv(
                deep(RGB, bits), ".avif", cv2.IMWRITE_AVIF_DEPTH, bits
            )
            for bits in (10, 12)
        },
    }
    return {name: lossy("AVIF", data) for name, data in written.items()}


def icos() -> dict[str, Sample]:
    size = {"sizes": [(WIDTH, HEIGHT)]}
    with_bitmap = encoded(RGBA, "ICO", bitmap_format="bmp", **size)
    return {
        "RGBA as PNG": Sample("ICO", encoded(RGBA, "ICO", **size), RGB),
        "RGBA as BMP": Sample("ICO", with_bitmap, RGB),
        "RGB as PNG": Sample("ICO", encoded(RGB, "ICO", **size), RGB),
    }


def jpegxls() -> dict[str, Sample]:
    def encode(levels: Pixels, **options: Any) -> bytes:
        return bytes(imagecodecs.jpegxl_encode(levels, lossless=True, **options))

    made = {
        "gray": Sample("JPEG XL", encode(GRAY), GRAY),
        "gray and alpha": Sample("JPEG XL", encode(LA), GRAY),
        "RGB": Sample("JPEG XL", encode(RGB), RGB),
        "RGBA": Sample("JPEG XL", encode(RGBA), RGB),
        "RGB in a container": Sample("JPEG XL", encode(RGB, usecontainer=True), RGB),
        "animated": Sample("JPEG XL", encode(np.stack([RGB, RGB[::-1]])), RGB),
        "16 bits gray": Sample("JPEG XL", encode(deep(GRAY)), deep(GRAY)),
        "16 bits RGB": Sample("JPEG XL", encode(deep(RGB)), deep(RGB)),
    }
    floats = imagecodecs.jpegxl_encode(RGB.astype(np.float32) / 255)
    return made | {"float32 RGB": Sample("JPEG XL", floats, None)}


def others() -> dict[str, Sample]:
    rows = {
        "TGA": encoded(RGB, "TGA"),
        "PCX": encoded(RGB, "PCX"),
        "SGI": encoded(RGB, "SGI"),
        "DDS": encoded(RGBA, "DDS"),
        "ICNS": encoded(Image.fromarray(RGB).resize((32, 32)), "ICNS"),
        "XBM": encoded(image(BITS, "1"), "XBM"),
        "QOI": encoded(RGB, "QOI"),
        "PAM (P7)": by_opencv(RGB, ".pam"),
        "PFM": by_opencv(RGB.astype(np.float32), ".pfm"),
        "Radiance HDR": by_opencv(RGB.astype(np.float32), ".hdr"),
        "Sun raster": by_opencv(RGB, ".ras"),
        "JPEG XR": imagecodecs.jpegxr_encode(RGB),
        "JPEG-LS": imagecodecs.jpegls_encode(RGB),
        "NumPy array": b"\x93NUMPY\x01\0" + bytes(300),
    }
    return {name: Sample("other", data, None) for name, data in rows.items()}


FORMATS = {
    "JPEG 2000": jpeg2000s,
    "BMP": bmps,
    "GIF": gifs,
    "PNM": pnms,
    "AVIF": avifs,
    "ICO": icos,
    "JPEG XL": jpegxls,
    "others": others,
}
