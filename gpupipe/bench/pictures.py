"""Draws images of torchvision and an engine, and maps of their differences, as PNGs in base64."""

import base64
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.bench.grid import to_picture
from gpupipe.bench.parity import keep_first_steps, load_images, pick_samples, reference_settings
from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.engines import registry
from gpupipe.pipeline.entry import Entry

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

BLACK_FROM = 16
"""A map shows differences of this many levels or more as black."""
_LONGEST = 400
"""The longest side of a picture in pixels. Larger images are reduced, so that the report fits into
a mail.
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
        name: The path of the image file, relative to the root of the data set.
        smaller: The factor by which the sides of its pictures are reduced.
        reference: torchvision's image.
        pairs: For each device, the engine's image, and the map of its differences from `reference`.
    """

    name: str
    smaller: int
    reference: Picture
    pairs: list[tuple[Picture, Picture]]


def drawable_steps(config: Config) -> tuple[Entry, ...]:
    """Return the longest start of the pipeline after which the images can be drawn.

    Each of its steps has a torch lowering. The last step returns uint8 images of 1 or 3 channels.
    """
    count, can_run = 0, registry.find_reference().can_run
    for number, entry in enumerate(config.pipeline.entries, 1):
        if not can_run(entry, "cpu"):
            break
        spec = entry.output_spec
        if spec.dtype == "uint8" and spec.layout == "CHW" and spec.channels in (1, 3):
            count = number
    return config.pipeline.entries[:count]


def draw_rows(
    config: Config, index: Index, devices: Sequence[str], samples: int, engine: str = ""
) -> Iterator[Row]:
    """Yield a row of pictures for each of up to `samples` samples, spread over the index.

    It leaves out a sample that one of the engines cannot read, or for which they return images of
    different sizes.

    Args:
        config: The config that was compared.
        index: Its samples.
        devices: The devices of the compared engine, "cpu" or "gpu:N".
        samples: How many samples to draw at most.
        engine: The engine compared with torchvision; by default the one that `auto` prefers.
    """
    steps = len(drawable_steps(config))
    if not steps:
        return
    few, name = pick_samples(config, index, samples), engine or registry.find_preferred()
    references = load_images(keep_first_steps(config, steps, **reference_settings()), few)
    by_title = [
        (
            f"{registry.get_title(name)} on {device.upper().replace(':', ' ')}",
            load_images(keep_first_steps(config, steps, engine=name, device=device), few),
        )
        for device in devices
    ]
    for id, image in references.items():
        if not all(id in images and images[id].shape == image.shape for _, images in by_title):
            continue
        file = os.path.relpath(few.location(id), few.root)
        smaller = -(-max(image.shape[1:]) // _LONGEST)
        pairs = [_draw_pair(file, image, images[id], title, smaller) for title, images in by_title]
        alt = f"{file} as torchvision makes it"
        reference = _encode("torchvision", alt, to_picture(image).reduce(smaller))
        yield Row(file, smaller, reference, pairs)


def _draw_pair(
    file: str, expected: "Tensor", image: "Tensor", engine: str, smaller: int
) -> tuple[Picture, Picture]:
    """Draw an engine's image, and the map of its differences from torchvision's, `expected`."""
    from PIL.Image import fromarray

    apart = (image.short() - expected.short()).abs().amax(0).numpy()
    difference = _describe_difference(apart)
    alt = f"map of the difference between {engine} and torchvision in {file}: {difference}"
    return (
        _encode(engine, f"{file} as {engine} makes it", to_picture(image).reduce(smaller)),
        _encode(difference, alt, fromarray(difference_map(apart, smaller))),
    )


def _describe_difference(apart: NDArray[np.int16]) -> str:
    """Describe `apart`, the differences of an image's pixels in levels, (H, W), as text."""
    if not apart.any():
        return "no difference"
    percent = 100 * float((apart > 0).mean())
    share = f"{percent:.1f}" if percent >= 0.1 else "less than 0.1"
    return (
        f"difference: up to {apart.max()} level{'s' * (int(apart.max()) != 1)}, in "
        f"{share}\xa0% of the pixels"
    )


def difference_map(apart: NDArray[np.int16], smaller: int) -> NDArray[np.uint8]:
    """Draw the differences between two images as a map of grey values.

    White is no difference. The scale is logarithmic, so that the grey values of 1 to 4 levels
    differ clearly: they are 193, 156, 130 and 110.

    Args:
        apart: The differences in levels, (H, W).
        smaller: A pixel of the map shows the largest of `smaller` x `smaller` differences, so that
            no thin line is lost.

    Returns:
        The map, (H / smaller, W / smaller), both rounded up.
    """
    height, width = apart.shape
    padded = np.pad(apart, ((0, -height % smaller), (0, -width % smaller)))
    largest = padded.reshape(len(padded) // smaller, smaller, -1, smaller).max(axis=(1, 3))
    dark = np.log2(1.0 + np.minimum(largest, BLACK_FROM)) / np.log2(1.0 + BLACK_FROM)
    return np.round(255 - 255 * dark).astype(np.uint8)  # type: ignore[no-any-return]


def _encode(caption: str, alt: str, picture: "Image") -> Picture:
    """Encode a picture as PNG, for the report."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return Picture(caption, alt, *picture.size, base64.b64encode(buffer.getvalue()).decode())
