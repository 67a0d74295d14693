"""Pages of pictures of what steps do."""

import numpy as np
import pytest
from PIL import Image

from gpupipe.bench.gallery_page import DRAWS, StepPictures, draw_page, page_width

RED, BLUE = (255, 0, 0), (0, 0, 255)


def row(*sizes: tuple[int, int], title: str = "step") -> StepPictures:
    """A red original, and blue draws, all of the sizes (width, height)."""
    colours = [RED, *[BLUE] * (len(sizes) - 1)]
    images = [Image.new("RGB", size, c) for size, c in zip(sizes, colours, strict=True)]
    return StepPictures("step", title, images)


def extents(page: Image.Image, colour: tuple[int, int, int]) -> tuple[int, int]:
    """Return the number of columns and rows of a page that hold a colour."""
    there = (np.asarray(page) == colour).all(-1)
    return int(there.any(0).sum()), int(there.any(1).sum())


@pytest.mark.parametrize(
    ("original", "drawn", "sizes"),
    [
        ((200, 100), (100, 50), ((80, 40), (40, 20))),
        ((200, 100), (300, 100), ((53, 27), (80, 27))),
        ((200, 100), (800, 800), ((40, 20), (80, 80))),
        ((20, 40), (20, 40), ((40, 80), (40, 80))),
    ],
)
def test_pictures_of_a_row_are_scaled_alike_unless_one_is_very_large(
    original: tuple[int, int],
    drawn: tuple[int, int],
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    page = draw_page([row(original, drawn)], 80)
    assert (extents(page, RED), extents(page, BLUE)) == sizes


def test_rows_stand_below_each_other_and_are_no_higher_than_their_pictures() -> None:
    wide, high = row((100, 20), (100, 20)), row((20, 100), (20, 100))
    page = draw_page([wide, high], 50)
    assert page.width == page_width(50) >= (DRAWS + 1) * 50
    heights = [draw_page([each], 50).height for each in (wide, high)]
    assert heights[1] - heights[0] == 40
    assert sum(heights) - 10 < page.height < sum(heights)
    assert extents(page, RED) == (50, 10 + 50)


def test_all_draws_fit_beside_the_original() -> None:
    page = draw_page([row(*[(50, 50)] * (DRAWS + 1))], 50)
    assert extents(page, BLUE) == (DRAWS * 50, 50)


def test_long_titles_take_several_lines() -> None:
    title = "random_apply: {transforms: [" + ", ".join(["random_horizontal_flip"] * 9) + "]}"
    pages = [draw_page([row((50, 50), title=text)], 50) for text in ("step", title)]
    dark = [int((np.asarray(page).max(-1) < 100).sum()) for page in pages]
    assert dark[1] > 20 * dark[0] > 0
    assert pages[1].height >= pages[0].height + 2 * 14
    assert extents(pages[1], RED) == (50, 50)
    assert (np.asarray(pages[1])[:, -4:] == 255).all(), "no letter reaches the edge"


def test_the_letters_of_a_title_grow_with_the_page() -> None:
    page = np.asarray(draw_page([row((50, 50), title="HHH")], 96))
    letters = (page.max(-1) < 100)[:40].any(1).sum()
    assert letters > page.shape[1] / 60, "six pixels high where a phone shows 360 across"
