"""Draws the pages of a gallery: for each step its YAML, the original, and the draws beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

DRAWS = 8
"""How many draws of a step are shown."""
_GAP = 6
_LINE_HEIGHT = 14
_LETTER_WIDTH = 6
_MAX_REDUCED = 2.0
"""How many times smaller than on other rows the original may be drawn, beside larger results."""


@dataclass(frozen=True)
class StepPictures:
    """What one step does to the photograph.

    Attributes:
        name: The name of the page, without a suffix.
        title: The step as YAML.
        images: The original, then the draws: eight, or one if the step draws nothing. Of a step
            that makes several images, up to eight of them.
    """

    name: str
    title: str
    images: list[Image]


def draw_page(rows: Sequence[StepPictures], side: int) -> Image:
    """Draw rows below each other, with their titles.

    Pictures of one row are reduced alike, so that a crop is smaller than the original, and what a
    step enlarges is larger. Only those more than twice as large as the original are reduced more.

    Args:
        rows: What the steps made.
        side: The longest side of the largest picture of a row, in pixels.
    """
    from PIL import Image

    drawn = [_draw_row(row, side) for row in rows]
    height = _GAP + sum(row.height + _GAP for row in drawn)
    page = Image.new("RGB", (page_width(side), height), "white")
    top = _GAP
    for row in drawn:
        page.paste(row, (0, top))
        top += row.height + _GAP
    return page


def page_width(side: int) -> int:
    """Return the width of a page in pixels, whose pictures have this longest side."""
    return _GAP + (DRAWS + 1) * (side + _GAP)


def _draw_row(row: StepPictures, side: int) -> Image:
    """Draw the title, in as many lines as it needs, and the pictures below it."""
    from PIL import Image, ImageDraw

    width = page_width(side)
    letters = max(1, (width - 2 * _GAP) // _LETTER_WIDTH)
    lines = textwrap.wrap(row.title.encode("ascii", "replace").decode(), letters)
    original = max(row.images[0].size)
    largest = max(max(image.size) for image in row.images)
    scale = side / min(largest, _MAX_REDUCED * original)
    tiles = [_fit(image, scale, side) for image in row.images]
    below = len(lines) * _LINE_HEIGHT + _GAP // 2
    picture = Image.new("RGB", (width, below + max(tile.height for tile in tiles)), "white")
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        draw.text((_GAP, number * _LINE_HEIGHT), line, fill="black")
    for column, tile in enumerate(tiles):
        picture.paste(tile, (_GAP + column * (side + _GAP), below))
    return picture


def _fit(image: Image, scale: float, side: int) -> Image:
    """Scale an image; reduce it more if it would be larger than `side`."""
    from PIL import Image

    scale = min(scale, side / max(image.size))
    size = tuple(max(1, round(n * scale)) for n in image.size)
    return image.resize((size[0], size[1]), Image.Resampling.BILINEAR)
