"""The images side by side, and the maps of where they differ."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gpupipe import config as configs
from gpupipe.bench import pictures


def pixels(picture: pictures.Picture) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with Image.open(io.BytesIO(base64.b64decode(picture.png))) as image:
        assert image.size == (picture.width, picture.height)
        return np.asarray(image)


def test_a_map_shows_where_the_two_images_beside_it_differ(faces: Path) -> None:
    config = configs.read(
        {
            "data": {"source": "folder", "root": str(faces)},
            "pipeline": "affine",
            "loader": {"device": "cpu"},
        }
    )
    found = list(pictures.draw_rows(config, config.source.index(), ["cpu"], 4, "dali"))
    assert len(found) == 4
    for row in found:
        ((made, difference),) = row.pairs
        apart = np.abs(pixels(made).astype(int) - pixels(row.reference)).max(axis=-1)
        expected = 255 - 255 * np.log2(1 + np.minimum(apart, 16)) / np.log2(17)
        assert np.abs(pixels(difference) - expected).max() <= 0.5
        assert (f"up to {apart.max()} level" in difference.caption) == bool(apart.any())
        assert ("no difference" in difference.caption) != bool(apart.any())
        assert row.name in difference.alt
    assert any((pixels(row.pairs[0][1]) < 128).any() for row in found), (
        "the edges of images that were turned differ"
    )


def test_large_photographs_are_shown_smaller_and_no_thin_line_is_lost(photos: Path) -> None:
    large = configs.read(
        {
            "data": {"source": "folder", "root": str(photos)},
            "pipeline": ["decode"],
            "loader": {"device": "cpu"},
        }
    )
    found = list(pictures.draw_rows(large, large.source.index(), ["cpu"], 3))
    assert len(found) == 3
    assert any(row.smaller > 1 for row in found)
    shown = [p for row in found for p in (row.reference, *row.pairs[0])]
    assert all(max(p.width, p.height) <= 400 for p in shown)
    assert all(
        row.reference.width == row.pairs[0][1].width
        and row.reference.height == row.pairs[0][1].height
        for row in found
    )
    apart = np.zeros((90, 131), np.int16)
    apart[:, 64] = 16
    apart[7, 3] = 4
    small = pictures.difference_map(apart, 4)
    assert small.shape == (23, 33)
    assert (small[:, 16] == 0).all()
    assert small[1, 0] == 110
    assert [pictures.difference_map(np.full((1, 1), n, np.int16), 1).item() for n in range(5)] == [
        255,
        193,
        156,
        130,
        110,
    ], "1 to 4 levels can be told apart"
    assert (np.delete(small, 16, 1) < 255).sum() == 1
