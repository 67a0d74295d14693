"""PNGs of each kind, small and whole; their chunks; and the pixels that Pillow makes of them."""

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gpupipe.decoders.builtin.pillow import Pillow
from gpupipe.decoders.decoder import CannotDecodeError, as_bytes

MODES = {"rgb": 3, "gray": 1}
_BEGIN = 8


def make_kinds(height: int, width: int, seed: int = 0) -> dict[str, bytes]:
    """PNGs that gpupipe._png decodes, by kind."""
    rng = np.random.default_rng(seed)
    rgba = Image.fromarray(rng.integers(0, 256, (height, width, 4), np.uint8), "RGBA")
    rgb = rgba.convert("RGB")
    gray = rgb.convert("L")
    texts = PngInfo()
    texts.add_text("Title", "a mask")
    return {
        "gray": encode(gray),
        "gray of 1 bit": encode(gray.convert("1")),
        "gray of 2 bits": pack_gray(np.asarray(gray), 2),
        "gray of 4 bits": pack_gray(np.asarray(gray), 4),
        "RGB": encode(rgb),
        "RGBA": encode(rgba),
        "gray with alpha": encode(rgba.convert("LA")),
        **{f"palette of {n}": encode(rgb.quantize(n)) for n in (2, 4, 16, 256)},
        "uncompressed": encode(rgb, compress_level=0),
        "texts and resolution": encode(gray, pnginfo=texts, dpi=(72, 72)),
    }


def make_others(height: int, width: int) -> dict[str, bytes]:
    """PNGs that gpupipe._png leaves to other decoders, by kind."""
    gray = Image.fromarray(np.arange(height * width, dtype=np.uint8).reshape(height, width))
    exif = Image.Exif()
    exif[0x0112] = 6
    compressed = PngInfo()
    compressed.add_text("Title", "a mask", zip=True)
    whole = encode(gray)
    head, data, end = split(whole)
    half = len(data) // 2
    halves = make_chunk(b"IDAT", data[8:half]), make_chunk(b"IDAT", data[half:-4])
    return {
        "16 bits": encode(Image.fromarray(np.zeros((height, width), np.uint16))),
        "transparent colour": encode(gray, transparency=7),
        "transparent entries": encode(gray.convert("P"), transparency=b"\0\1"),
        "EXIF": encode(gray, exif=exif),
        "animation": encode(gray, save_all=True, append_images=[gray.rotate(90)]),
        "profile": encode(gray, icc_profile=b"no profile"),
        "compressed text": encode(gray, pnginfo=compressed),
        "unknown chunk": join(head, make_chunk(b"prVt", b"1"), data, end),
        "two runs of pixels": join(head, halves[0], make_chunk(b"tIME", bytes(7)), halves[1], end),
        "two headers": join(head, head, data, end),
        "short resolution": join(head, make_chunk(b"pHYs", b"1"), data, end),
        "interlaced": join(make_chunk(b"IHDR", head[8:20] + b"\1"), data, end),
        "no end": join(head, data),
        "no pixels": join(head, end),
        "no image": b"\x89PNG\r\n\x1a\n",
    }


def encode(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


def make_chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def pack_gray(levels: NDArray[np.uint8], depth: int, level: int = 9) -> bytes:
    """A PNG of the first `depth` bits of gray levels."""
    height, width = levels.shape
    bits = np.unpackbits(levels[..., None], -1)[..., :depth].reshape(height, width * depth)
    rows = np.pad(np.packbits(bits, -1), ((0, 0), (1, 0)))
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    pixels = zlib.compress(rows.tobytes(), level)
    return join(make_chunk(b"IHDR", header), make_chunk(b"IDAT", pixels), make_chunk(b"IEND", b""))


def split(content: bytes) -> list[bytes]:
    """The chunks of a whole PNG."""
    return list(_iterate(content))


def _iterate(content: bytes) -> Iterator[bytes]:
    at = _BEGIN
    while at < len(content):
        end = at + 12 + int.from_bytes(content[at : at + 4], "big")
        yield content[at:end]
        at = end


def join(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def decode_with_pillow(content: Any, mode: str) -> NDArray[np.uint8] | None:
    """The pixels (H, W, C) that gpupipe makes of a PNG without the extension; None if it cannot."""
    data, decoder = as_bytes(content), Pillow()
    try:
        header = decoder.probe(data)
        assert header is not None
        return decoder.decode(header, data, mode=mode, dtype="uint8")
    except CannotDecodeError:
        return None
