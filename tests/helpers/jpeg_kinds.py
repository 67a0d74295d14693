"""JPEGs of all samplings and coding modes, damaged JPEGs, and what the decoders of whole images
make of them.
"""

from collections.abc import Iterator

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError
from gpupipe.decoders.image_header import read_header
from helpers.cut_jpegs import jpeg, pixels

SAMPLINGS = ("444", "422", "420", "440", "411")
Bytes = NDArray[np.uint8]


def encode(size: tuple[int, int], sampling: str, seed: int = 0) -> bytes:
    """A baseline JPEG of edges and noise: chroma changes from pixel to pixel."""
    content: bytes = simplejpeg.encode_jpeg(pixels(*size, seed), 85, "RGB", sampling)
    return content


def gray(size: tuple[int, int], seed: int = 0) -> bytes:
    return jpeg("L", size, seed)


def with_restarts(size: tuple[int, int], seed: int = 0, blocks: int = 3) -> bytes:
    return jpeg(size=size, seed=seed, subsampling=2, restart_marker_blocks=blocks)


def one_scan(size: tuple[int, int], seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """JPEGs of which the extension decodes windows, by name."""
    for sampling in SAMPLINGS:
        yield sampling, encode(size, sampling, seed)
    yield "gray", gray(size, seed)
    yield "restarts", with_restarts(size, seed)


def several_scans(size: tuple[int, int]) -> Iterator[tuple[str, bytes]]:
    """JPEGs that it leaves to the decoders of whole images, by name."""
    yield "progressive", jpeg(size=size, progressive=True)
    yield "progressive gray", jpeg("L", size, progressive=True)
    yield "CMYK", jpeg("CMYK", size)
    yield (
        "YCCK",
        simplejpeg.encode_jpeg(
            np.repeat(pixels(*size), 2, axis=2)[:, :, :4].copy(), 85, "CMYK", "420"
        ),
    )


def as_data(content: bytes) -> Bytes:
    """The bytes in memory of their own, which ends with them."""
    return np.frombuffer(content, np.uint8).copy()


def decode_whole(data: Bytes, mode: str = "rgb") -> Bytes | None:
    """The pixels (H, W, C) that torchvision decodes; None if it refuses the file."""
    try:
        return DecoderChain("torchvision").decode(data, DecodeOptions(mode))
    except CannotDecodeError:
        return None


def is_one_scan(data: Bytes, max_pixels: int = 10**6) -> tuple[int, int] | None:
    """The [height, width] of a file that the engine hands to the extension; else None."""
    header = read_header(data)
    is_small = header.height * header.width <= max_pixels
    is_candidate = header.is_plain and header.format == "JPEG" and header.end and is_small
    return (header.height, header.width) if is_candidate else None


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """A JPEG that is cut, or some bytes of which are changed, removed or doubled."""
    kind, at = int(rng.integers(6)), int(rng.integers(2, len(content)))
    length = min(int(rng.choice([1, 2, 8, 64, 700])), len(content) - at)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[at + length :]
    if kind == 2:
        return content[: at + length] + content[at:]
    if kind == 3:
        return content[:at] + bytes([0xFF, int(rng.integers(256))]) + content[at + 2 :]
    if kind == 4:
        return content[:at] + rng.bytes(length) + content[at + length :]
    changed = bytearray(content)
    for place in rng.integers(2, len(content), int(rng.integers(1, 9))):
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def draw_window(size: tuple[int, int], rng: np.random.Generator) -> list[int]:
    """[top, left, height, width] of a window inside an image."""
    height, width = (int(rng.integers(1, side + 1)) for side in size)
    top, left = int(rng.integers(size[0] - height + 1)), int(rng.integers(size[1] - width + 1))
    return [top, left, height, width]
