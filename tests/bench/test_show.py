"""gpupipe.show(): what it draws with a loader, and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.bench import grid
from gpupipe.bench.grid import TEXT_HEIGHT


def load_faces(faces: Path, **changes: Any) -> gpupipe.Loader:
    steps = [
        "decode",
        {"resize": {"size": [40, 50]}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
    ]
    config = {"data": {"source": "folder", "root": str(faces)}, "pipeline": steps}
    settings = {"batch_size": 10, "device": "cpu", "engine": "dataloader", "workers": 0}
    return gpupipe.load(config, **settings | changes)


def test_with_a_loader_it_is_the_picture_of_show_batch(faces: Path) -> None:
    with load_faces(faces) as loader:
        batch = next(iter(loader))
        assert gpupipe.show(batch, loader, 4).tobytes() == grid.draw(loader, batch, 4).tobytes()


@pytest.mark.parametrize("format", ["dict", "tuple"])
def test_without_a_loader_it_draws_the_images(faces: Path, format: str) -> None:
    with load_faces(faces, format=format) as loader:
        batch = next(iter(loader))
    picture = gpupipe.show(batch, samples=3)
    assert picture.size == (3 * 50, 40 + 2 * TEXT_HEIGHT)
    drawn = np.asarray(picture)[TEXT_HEIGHT : TEXT_HEIGHT + 40, :50]
    image = (batch[0] if format == "tuple" else batch["image"])[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(drawn / 255, image, atol=0.51 / 255)


def test_fields_stand_side_by_side_and_other_numbers_are_stretched() -> None:
    levels = torch.linspace(-2, 6, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    batch = {"image": levels, "depth": levels[:, :1], "weight": torch.ones(2)}
    picture = np.asarray(gpupipe.show(batch))
    assert picture.shape == (4 + 2 * TEXT_HEIGHT, 2 * 8, 3)
    drawn = picture[TEXT_HEIGHT : TEXT_HEIGHT + 4]
    expected = (levels.permute(0, 2, 3, 1).numpy() + 2) / 8 * 255  # -2 is black, 6 is white
    np.testing.assert_allclose(drawn[:, :4], expected[0], atol=0.51)
    np.testing.assert_allclose(drawn[:, 8:12], expected[1], atol=0.51)
    assert drawn[:, 12:].max() == 255


def test_numbers_above_1_alone_are_stretched_too() -> None:
    levels = torch.linspace(0, 4, 3 * 4 * 4).reshape(1, 3, 4, 4)
    drawn = np.asarray(gpupipe.show({"image": levels}))[TEXT_HEIGHT : TEXT_HEIGHT + 4]
    expected = levels[0].permute(1, 2, 0).numpy() / 4 * 255
    np.testing.assert_allclose(drawn[:, :4], expected, atol=0.51)


def test_a_soft_label_is_named_by_its_largest_share() -> None:
    images = torch.zeros(2, 3, 30, 40)
    soft = {"image": images, "label": torch.tensor([[0.1, 0.2, 0.7], [0.9, 0.1, 0.0]])}
    hard = {"image": images, "label": torch.tensor([2, 0])}
    assert gpupipe.show(soft).tobytes() == gpupipe.show(hard).tobytes()


def test_what_is_no_batch_of_images_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(gpupipe.GpupipeError, match=r"next\(iter\(loader\)\)"):
        gpupipe.show([1, 2])
    with pytest.raises(gpupipe.GpupipeError, match=r"'image' is \(2, 5\)"):
        gpupipe.show({"image": torch.ones(2, 5)})
