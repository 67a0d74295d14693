"""Batches in a grid."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.bench import grid
from gpupipe.bench.grid import TEXT_HEIGHT, arrange, join
from helpers.arrays import saved


def tile(color: str, size: tuple[int, int] = (100, 60)) -> Image.Image:
    return Image.new("RGB", size, color)


def test_samples_stand_in_rows_of_eight_with_names_below() -> None:
    sheet = arrange([tile("red")] * 9 + [tile("blue")], [str(n) for n in range(10)], "title")
    assert sheet.size == (8 * 100, 2 * (60 + TEXT_HEIGHT) + TEXT_HEIGHT)
    assert sheet.getpixel((50, TEXT_HEIGHT + 30)) == (255, 0, 0)
    assert sheet.getpixel((150, 2 * TEXT_HEIGHT + 60 + 30)) == (0, 0, 255)
    name = sheet.crop((0, TEXT_HEIGHT + 60, 100, 2 * TEXT_HEIGHT + 60)).convert("L")
    assert name.getextrema()[0] < 128, "the name is written in black"


def test_wide_samples_stand_in_fewer_columns() -> None:
    sheet = arrange([tile("red", (900, 10))] * 4, [""] * 4, "")
    assert sheet.size == (1800, 2 * (10 + TEXT_HEIGHT) + TEXT_HEIGHT)


def test_a_long_name_is_cut_off_at_its_tile() -> None:
    pixels = np.asarray(arrange([tile("white")] * 2, ["W" * 100, ""], ""))
    assert pixels[TEXT_HEIGHT + 60 :, :100].min() < 128
    assert pixels[:, 100:].min() == 255


def test_pictures_of_one_sample_are_joined() -> None:
    one = tile("red")
    assert join([one]) is one
    row = join([one, tile("blue", (20, 80))])
    assert row.size == (120, 80)
    assert row.getpixel((110, 79)) == (0, 0, 255)
    assert row.getpixel((10, 70)) == (255, 255, 255)


def load_faces(faces: Path, steps: list[Any], **options: Any) -> gpupipe.Loader:
    config = {"data": {"source": "folder", "root": str(faces)}, "pipeline": steps}
    settings = {"batch_size": 40, "device": "cpu", "engine": "cpu", "shuffle": False}
    return gpupipe.load(config, **settings | options)


def test_normalize_is_undone(faces: Path) -> None:
    small = ["decode", {"resize": {"size": [30, 40]}}]
    floats = {"to_dtype": {"dtype": "float32", "scale": True}}
    normalize = {"normalize": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}}
    drawn = []
    for steps in ([*small, floats], [*small, floats, normalize]):
        with load_faces(faces, steps) as loader:
            sheet = grid.draw(loader, next(iter(loader)), 3)
        drawn.append(np.asarray(sheet)[TEXT_HEIGHT : TEXT_HEIGHT + 30].astype(int))
    assert np.abs(drawn[0] - drawn[1]).max() <= 1
    assert np.ptp(drawn[0]) > 50


def test_up_to_32_samples_are_saved(faces: Path, tmp_path: Path) -> None:
    with load_faces(faces, ["decode", {"resize": {"size": [30, 40]}}]) as loader:
        grid.save(loader, next(iter(loader)), tmp_path / "batch.png")
    with Image.open(tmp_path / "batch.png") as sheet:
        assert sheet.size == (8 * 40, 4 * (30 + TEXT_HEIGHT) + TEXT_HEIGHT)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    data = saved(tmp_path, np.zeros((4, 5, 6, 7), np.float32), layout="CHW")
    config = {"data": data, "pipeline": ["identity"]}
    with (
        gpupipe.load(config, batch_size=2, device="cpu") as loader,
        pytest.raises(gpupipe.GpupipeError, match=r"are \(5, 6, 7\)"),
    ):
        grid.draw(loader, next(iter(loader)), 2)


def load_small_faces(faces: Path, **changes: Any) -> gpupipe.Loader:
    steps = [
        "decode",
        {"resize": {"size": [40, 50]}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
    ]
    config = {"data": {"source": "folder", "root": str(faces)}, "pipeline": steps}
    settings = {"batch_size": 10, "device": "cpu", "engine": "dataloader", "workers": 0}
    return gpupipe.load(config, **settings | changes)


def test_with_a_loader_it_is_the_picture_of_show_batch(faces: Path) -> None:
    with load_small_faces(faces) as loader:
        batch = next(iter(loader))
        assert gpupipe.show(batch, loader, 4).tobytes() == grid.draw(loader, batch, 4).tobytes()


@pytest.mark.parametrize("format", ["dict", "tuple"])
def test_without_a_loader_it_draws_the_images(faces: Path, format: str) -> None:
    with load_small_faces(faces, format=format) as loader:
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


def test_the_pixels_of_no_class_do_not_look_like_class_1() -> None:
    """By their hues, 1 and 255 were 8 degrees apart."""
    mask = torch.tensor([[[0, 1, 2, 255]]])
    laid = np.asarray(grid._lay_over(Image.new("RGB", (4, 1), "black"), mask)).astype(int)[0]
    assert laid[0].tolist() == [0, 0, 0]
    assert len(set(laid[3].tolist())) == 1, "white"
    assert min(np.abs(a - b).max() for n, a in enumerate(laid) for b in laid[:n]) > 60
