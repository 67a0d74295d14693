"""The measurements on arrays, whose main field is not called image."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.bench import grid, tables
from gpupipe.bench.measure import image_of
from gpupipe.bench.parity import measure
from gpupipe.bench.pictures import drawable_steps
from gpupipe.bench.plan import facts, operators
from gpupipe.loading.assembly import resolve
from gpupipe.testing import check_loader
from helpers.arrays import numbers, saved

CROP: list[Any] = [{"random_crop": {"size": 4}}, {"normalize": {"mean": 0, "std": 2}}]


def checked(data: dict[str, Any], steps: list[Any], **changes: Any) -> configs.Config:
    return configs.read({"data": data, "pipeline": steps}, device="cpu", batch_size=4, **changes)


def test_parity_step_by_step_and_without_a_step(tmp_path: Path) -> None:
    stored = numbers("float32", (6, 3, 8, 8))
    stored[:, 0, 0] = np.nan
    stored[:, 1, 0] = np.inf
    config = checked(saved(tmp_path, stored), CROP)
    found = list(measure(config, config.source.index(), ["cpu"], 6))
    assert [(a.step, a.holds, a.images) for a in found] == [
        ("random_crop", True, 6),
        ("normalize", True, 6),
    ]
    bare = checked(saved(tmp_path, stored), [])
    for last in (False, True):
        (alone,) = measure(bare, bare.source.index(), ["cpu"], 6, last=last)
        assert (alone.step, alone.max, alone.holds) == ("(no step)", 0.0, True)
    assert drawable_steps(config) == ()


def test_what_check_prints(tmp_path: Path) -> None:
    config = checked(
        saved(tmp_path, numbers("int16", (6, 9, 3)), layout="LC"),
        [{"to_dtype": {"dtype": "float32"}}, {"center_crop": {"size": 4}}],
        engine="dali",
    )
    resolved = resolve(config)
    *_, batch = facts(resolved)
    assert batch == "batch: array float32 (B, 4, 3)"
    for found in operators(resolved).values():
        assert [op for op, _, _ in found] == ["external_source", "cast", "slice"]
    rows = [list(column.cells) for column in tables.steps_table(config.pipeline).columns]
    assert [rows[2], rows[4]] == [["(9, 3)", "(4, 3)"], ["LC", "LC"]]


def test_what_is_no_image_is_not_drawn(tmp_path: Path) -> None:
    for shape, draws in (((3, 8, 8), True), ((2, 8, 8), False), ((8,), False)):
        with gpupipe.load(
            {"data": saved(tmp_path, numbers("uint8", (6, *shape))), "pipeline": []},
            device="cpu",
            batch_size=6,
        ) as loader:
            batch = next(iter(loader))
            assert len(image_of(batch)) == 6
            if draws:
                grid.save(loader, batch, tmp_path / "grid.png")
                assert (tmp_path / "grid.png").stat().st_size
                continue
            with pytest.raises(gpupipe.GpupipeError, match="what is drawn are images, "):
                grid.save(loader, batch, tmp_path / "grid.png")


def test_a_loader_of_arrays_keeps_the_contract(tmp_path: Path) -> None:
    config = {"data": saved(tmp_path, numbers("float32", (13, 3, 8, 8))), "pipeline": CROP}
    check_loader(lambda **options: gpupipe.load(config, **{"device": "cpu", "ids": True} | options))


def test_a_tuple_holds_the_main_field(tmp_path: Path) -> None:
    stored = numbers("float32", (6, 5))
    np.save(tmp_path / "labels.npy", np.arange(6) % 2)
    labels = str(tmp_path / "labels.npy")
    with gpupipe.load(
        {"data": saved(tmp_path, stored, field="x", labels=labels), "pipeline": []},
        device="cpu",
        batch_size=6,
        shuffle=False,
        format="tuple",
    ) as loader:
        (x, label) = next(iter(loader))
    assert np.array_equal(x.numpy(), stored)
    assert label.tolist() == [0, 1] * 3
