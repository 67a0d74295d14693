"""JPEGs of many kinds, whole and cut off, as Pillow writes them."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

END = b"\xff\xd9"


def pixels(height: int = 48, width: int = 64, seed: int = 0) -> NDArray[np.uint8]:
    """An image with edges and noise, uint8 (height, width, 3)."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = 128 + 90 * np.sin(x[..., None] / (5 + seed % 7) + np.array([0, 1, 2])) * np.cos(
        y[..., None] / 9
    )
    return (waves + rng.integers(-20, 20, (height, width, 3))).clip(0, 255).astype(np.uint8)


def jpeg(
    mode: str = "RGB", size: tuple[int, int] = (48, 64), seed: int = 0, **options: Any
) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(*size, seed)).convert(mode).save(
        buffer, "JPEG", **{"quality": 85, **options}
    )
    return buffer.getvalue()


def with_thumbnail(data: bytes) -> bytes:
    """The same with an EXIF segment in which there is a whole JPEG, as cameras write it."""
    block = b"Exif\0\0" + b"MM\0*\0\0\0\x08\0\0\0\0\0\0" + jpeg(size=(16, 16))
    return data[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + data[2:]


def kinds() -> Iterator[tuple[str, bytes]]:
    """Whole JPEGs by name."""
    yield "baseline", jpeg()
    yield "progressive", jpeg(progressive=True)
    yield "restart markers", jpeg(restart_marker_blocks=2)
    yield "grayscale", jpeg("L")
    yield "CMYK", jpeg("CMYK")
    yield "a comment that looks like an end", jpeg(comment=b"not " + END + b" yet")
    yield "thumbnail", with_thumbnail(jpeg())
    yield "fill bytes", (data := jpeg())[:2] + b"\xff\xff\xff" + data[2:]


def tails() -> Iterator[tuple[str, bytes]]:
    """What may follow the end of a JPEG by name: all longer than the 64 bytes that are looked at
    first.
    """
    yield "padding", bytes(500)
    yield "text", b"appended by a scanner\n" * 9
    yield "a second image", with_thumbnail(jpeg(seed=3))
    yield "a second image that is cut off", jpeg(seed=3)[:-100]
    yield (
        "a film",
        b"\0\0\0\x18ftypmp42" + np.random.default_rng(0).bytes(900).replace(b"\xff", b"\0"),
    )
