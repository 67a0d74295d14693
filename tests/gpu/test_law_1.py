"""Law 1 on a GPU: a sample is the same in every batch, order and run; to the bit where one decoder
takes all JPEGs.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from helpers.cut_jpegs import jpeg
from helpers.either_device import DEVICE
from helpers.reference import by_id

COUNT = 96
FLOOR_DB = 48.0
"""Least PSNR between two decoders: no pixel differs by more than a level."""
WAYS: list[dict[str, Any]] = [
    {"batch_size": 1},
    {"batch_size": 7, "threads": 1},
    {"batch_size": 32},
    {"batch_size": COUNT, "prefetch": 4},
    {"batch_size": 32, "shuffle": True, "seed": 5},
    {"batch_size": 32, "shuffle": True, "seed": 6},
    {"batch_size": 20, "shard": {"rank": 1, "world_size": 3}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of several sizes, subsamplings and kinds: the hardware decoder takes some of them
    only.
    """
    root = tmp_path_factory.mktemp("jpegs")
    (root / "one").mkdir()
    kinds: list[dict[str, Any]] = [
        {},
        {"subsampling": 0},
        {"subsampling": 1},
        {"progressive": True},
        {"mode": "L"},
        {"quality": 98},
    ]
    for n in range(COUNT):
        options = kinds[n % len(kinds)]
        side = (120, 256, 401)[n % 3]
        (root / "one" / f"{n:02}.jpg").write_bytes(jpeg(size=(side, side + 16), seed=n, **options))
    return root


def delivered(folder: Path, load: float, **options: Any) -> dict[int, torch.Tensor]:
    config = {
        "data": {"source": "folder", "root": folder},
        "pipeline": ["decode", {"center_crop": {"size": 112}}],
    }
    given = {
        "engine": "dali",
        "device": DEVICE,
        "ids": True,
        "batch_size": 32,
        "shuffle": False,
        "hw_decoder_load": load,
    }
    with gpupipe.load(config, **given | options) as loader:
        return by_id(loader)


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    error = float((a.double() - b.double()).square().mean())
    return math.inf if error == 0 else 10 * math.log10(255.0**2 / error)


@pytest.mark.either_device
@pytest.mark.parametrize("load", [0.0, 1.0] if DEVICE == "gpu" else [0.0])
def test_to_the_bit_where_one_decoder_takes_all(folder: Path, load: float) -> None:
    of = partial(delivered, folder, load)
    expected = of()
    assert sorted(expected) == list(range(COUNT))
    for options in [{}, *WAYS]:
        found = of(**options)
        assert found
        differ = [i for i in found if not torch.equal(found[i], expected[i])]
        assert not differ, f"{options}: samples {differ} differ"


@pytest.mark.either_device
def test_to_the_bit_after_a_resume_where_one_decoder_takes_all(folder: Path) -> None:
    config = {
        "data": {"source": "folder", "root": folder},
        "pipeline": ["decode", {"center_crop": {"size": 112}}],
    }
    options: dict[str, Any] = {"engine": "dali", "device": DEVICE, "batch_size": 16}
    options["hw_decoder_load"] = 0.0
    with gpupipe.load(config, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = [b["image"].clone() for b in iterator]
    with gpupipe.load(config, **options) as loader:
        loader.load_state_dict(state)
        resumed = [b["image"].clone() for b in loader]
    assert len(rest) == len(resumed) == 5
    assert all(torch.equal(a, b) for a, b in zip(rest, resumed, strict=True))


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_to_a_floor_in_between(folder: Path, load: float) -> None:
    expected = delivered(folder, 0.0)
    for options in [{}, *WAYS]:
        found = delivered(folder, load, **options)
        least = min(psnr(found[i], expected[i]) for i in found)
        print(f"load {load}, {options}: least PSNR {least:.1f} dB")
        assert least >= FLOOR_DB
