"""Draws pages of what steps do to a photograph: the original, and eight draws of each step.

random_affine: {degrees: 30}
original    8 results
(picture)   (draw 1)  (draw 2)  ...    (draw 8)
"""

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
_MIN_FONT_SIZE = 10
_FONTS_PER_WIDTH = 36
"""A page is this many font sizes wide: its text can be read on a phone that reduces the page."""
_PALE = "#57606a"
"""The colour of the labels over the pictures, beside black titles."""
_MAX_REDUCED = 2.0
"""A step may enlarge the image: its row then draws the original at most this many times smaller."""


@dataclass(frozen=True)
class StepPictures:
    """The pictures of one step's effect on the photograph.

    Attributes:
        name: The name of the page, without a suffix.
        title: The step as YAML.
        images: The original, then the results of eight draws, or one result if the step is not
            random. If the step returns several images, up to eight of them follow.
    """

    name: str
    title: str
    images: list[Image]


def draw_page(rows: Sequence[StepPictures], side: int) -> Image:
    """Return a page with the rows below each other, each under its title.

    Pictures of one row have the same scale: a crop looks smaller than the original, an enlarged
    image larger. Only pictures more than twice as large as the original are reduced further.

    Args:
        rows: The pictures of each step.
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
    """Return the width of a page in pixels; `side` is the longest side of its pictures."""
    return _GAP + (DRAWS + 1) * (side + _GAP)


def _draw_row(row: StepPictures, side: int) -> Image:
    """Draw a row's title, on as many lines as it needs, a line of labels, and the pictures."""
    from PIL import Image, ImageDraw, ImageFont

    width = page_width(side)
    size = max(_MIN_FONT_SIZE, width // _FONTS_PER_WIDTH)
    font = ImageFont.load_default(size)
    title = row.title.encode("ascii", "replace").decode()
    letters = len(title) * (width - 2 * _GAP) / max(1, 1.1 * font.getlength(title))
    lines = textwrap.wrap(title, max(1, int(letters)))
    original = max(row.images[0].size)
    largest = max(max(image.size) for image in row.images)
    scale = side / min(largest, _MAX_REDUCED * original)
    tiles = [_fit(image, scale, side) for image in row.images]
    line_height = round(1.3 * size)
    below = (len(lines) + 1) * line_height + _GAP // 2
    picture = Image.new("RGB", (width, below + max(tile.height for tile in tiles)), "white")
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        draw.text((_GAP, number * line_height), line, fill="black", font=font)
    results = len(tiles) - 1
    labels = ["original", "result" if results == 1 else f"{results} results"]
    for column, label in enumerate(labels):
        place = (_GAP + column * (side + _GAP), len(lines) * line_height)
        draw.text(place, label, fill=_PALE, font=font)
    for column, tile in enumerate(tiles):
        picture.paste(tile, (_GAP + column * (side + _GAP), below))
    return picture


def _fit(image: Image, scale: float, side: int) -> Image:
    """Scale an image; reduce it further if a side would be longer than `side` pixels."""
    from PIL import Image

    scale = min(scale, side / max(image.size))
    size = tuple(max(1, round(n * scale)) for n in image.size)
    return image.resize((size[0], size[1]), Image.Resampling.BILINEAR)
