"""Draws images of both engines side by side, with maps of their differences, as PNGs in base64."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.bench.parity import Levels, ParitySample, iter_samples
from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.engines import registry

BLACK_FROM = 16
"""The difference in levels from which a map is black."""
_LONGEST = 400
"""The longest side in pixels at which an image is shown in full size. Larger ones are reduced, so
that the report fits into a mail.
"""


@dataclass(frozen=True)
class Picture:
    """A picture in the report.

    Attributes:
        caption: The text below it.
        alt: The alternative text, for readers who cannot see it.
        width: Its width as shown, in pixels.
        height: Its height as shown, in pixels.
        png: The PNG file in base64.
    """

    caption: str
    alt: str
    width: int
    height: int
    png: str


@dataclass(frozen=True)
class Row:
    """The pictures of one file.

    Attributes:
        name: The file's path below the root.
        smaller: The factor by which its pictures are reduced.
        reference: torchvision's image.
        pairs: For each device, the engine's image and the map of its difference.
    """

    name: str
    smaller: int
    reference: Picture
    pairs: list[tuple[Picture, Picture]]


def draw_rows(
    config: Config, index: Index, devices: Sequence[str], samples: int, engine: str = ""
) -> Iterator[Row]:
    """Yield a row for each of a few samples: of an engine, by default the one `auto` prefers."""
    name = engine or registry.preferred()
    title = registry.title(name)
    for sample in iter_samples(config, index, devices, samples, name):
        smaller = -(-max(sample.expected.shape[:2]) // _LONGEST)
        pairs = [
            _draw_pair(sample, image, f"{title} on {device.upper().replace(':', ' ')}", smaller)
            for device, image in zip(devices, sample.images, strict=True)
        ]
        yield Row(
            sample.name,
            smaller,
            _encode(
                "torchvision",
                f"{sample.name} as torchvision makes it",
                _reduce(sample.expected, smaller),
            ),
            pairs,
        )


def _draw_pair(
    sample: ParitySample, image: Levels, engine: str, smaller: int
) -> tuple[Picture, Picture]:
    apart = np.abs(image.astype(np.int16) - sample.expected).max(axis=-1)
    difference = _describe_difference(apart)
    picture = _encode(engine, f"{sample.name} as {engine} makes it", _reduce(image, smaller))
    return picture, _encode(
        difference,
        f"map of the difference between {engine} and torchvision in {sample.name}: {difference}",
        difference_map(apart, smaller),
    )


def _describe_difference(apart: NDArray[np.int16]) -> str:
    """Describe the difference in words."""
    if not apart.any():
        return "no difference"
    percent = 100 * float((apart > 0).mean())
    share = f"{percent:.1f}" if percent >= 0.1 else "less than 0.1"
    return (
        f"difference: up to {apart.max()} level{'s' * (int(apart.max()) != 1)}, in "
        f"{share}\xa0% of the pixels"
    )


def difference_map(apart: NDArray[np.int16], smaller: int) -> Levels:
    """Draw differences in levels, (H, W), as grey values, (h, w); white is no difference.

    The scale is logarithmic, so that 1 to 4 levels can be told apart: they are 193, 156, 130 and
    110.

    Each output pixel shows the largest of `smaller` x `smaller` differences, so that no thin line
    is lost.
    """
    height, width = apart.shape
    padded = np.pad(apart, ((0, -height % smaller), (0, -width % smaller)))
    most = padded.reshape(len(padded) // smaller, smaller, -1, smaller).max(axis=(1, 3))
    dark = np.log2(1.0 + np.minimum(most, BLACK_FROM)) / np.log2(1.0 + BLACK_FROM)
    grey: Levels = np.round(255 - 255 * dark).astype(np.uint8)
    return grey


def _reduce(image: Levels, smaller: int) -> Any:
    from PIL import Image

    return Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).reduce(smaller)


def _encode(caption: str, alt: str, image: Any) -> Picture:
    """Encode a Pillow image, or a grey array (H, W)."""
    from PIL import Image

    shown = image if isinstance(image, Image.Image) else Image.fromarray(image)
    buffer = io.BytesIO()
    shown.save(buffer, "PNG", optimize=True)
    return Picture(
        caption, alt, shown.width, shown.height, base64.b64encode(buffer.getvalue()).decode()
    )
