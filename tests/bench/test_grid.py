"""Batches in a grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
