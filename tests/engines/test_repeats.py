"""Samples that come several times in an epoch: each time with draws of its own, on every engine."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from helpers.loaders import loading
from helpers.reference import transform

STEPS = ["decode", {"random_crop": {"size": 20}}, "random_horizontal_flip", "random_vertical_flip"]
ENGINES = [
    {"engine": "dali"},
    {"engine": "dataloader", "workers": 0},
    {"engine": "dataloader", "workers": 2},
    {"engine": "cpu"},
]
load = loading(STEPS, batch_size=8, repeats=3, epoch_size="all")


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 PNGs of noise, 30x40, in three classes."""
    root = tmp_path_factory.mktemp("repeats") / "noise"
    rng = np.random.default_rng(3)
    for n in range(12):
        (root / f"{n // 4}").mkdir(parents=True, exist_ok=True)
        image = rng.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(image).save(root / f"{n // 4}" / f"{n:02}.png")
    return root


def expected(loader: gpupipe.Loader, epoch: int, id: int, repeat: int) -> torch.Tensor:
    data = torch.from_numpy(np.fromfile(loader.index.location(id), np.uint8))
    seed = loader.config.loader.seed
    return transform(loader.config.pipeline, seed, epoch, id, data, repeat=repeat)


def check_epoch(loader: gpupipe.Loader, epoch: int) -> Counter[int]:
    """Compare every image with the reference of its repeat; return how often each id came."""
    came: Counter[int] = Counter()
    for batch in loader:
        for id, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            assert torch.equal(image, expected(loader, epoch, id, came[id])), (id, came[id])
            came[id] += 1
    return came


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": 1}, {"weights": "class_balanced"}, {"repeats": 1, "epoch_size": 30}],
    ids=str,
)
def test_each_repeat_has_the_draws_of_its_number(
    noise: Path, engine: dict[str, Any], options: dict[str, Any]
) -> None:
    with load(noise, **engine, **options) as loader:
        for epoch in range(2):
            came = check_epoch(loader, epoch)
            assert came.total() == loader.sampler.epoch_size
            assert max(came.values()) > 1
        first, second = (expected(loader, 0, 5, repeat) for repeat in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_broken_sample_leaves_the_repeats_of_others_alone(
    noise: Path, tmp_path: Path, engine: dict[str, Any]
) -> None:
    root = shutil.copytree(noise, tmp_path / "noise")
    options = {"on_error": "skip", "max_bad": 0.5, "quarantine": tmp_path / "bad.jsonl"}
    with load(root, **engine, **options) as loader:
        for id in (0, 7):
            Path(loader.index.location(id)).write_bytes(b"no image")
        for epoch in range(2):
            assert check_epoch(loader, epoch) == {n: 3 for n in range(12) if n not in (0, 7)}
        assert len(loader.engine.quarantine) == 2
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 2
