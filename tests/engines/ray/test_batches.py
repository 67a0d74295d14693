"""The batches of the Ray engine are those of the local engine, whichever worker makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loaders import load
from ray_cluster import RayCluster

PIPELINE = ["decode", {"resize": {"size": [32, 40]}}, {"random_affine": {"degrees": 20}}]
FLOATS = [*PIPELINE, {"to_dtype": {"dtype": "float32", "scale": True}}]
OPTIONS: dict[str, Any] = {"batch_size": 7, "threads": 1}


def ray_options(workers: Any, **more: Any) -> dict[str, Any]:
    """Settings of the Ray engine with the CPU engine inside."""
    ray = {"workers": workers, "cpus": 1, "engine": "cpu", **more}
    return {**OPTIONS, "engine": "ray", "ray": ray}


def batches(loader: Any) -> list[dict[str, torch.Tensor]]:
    """The batches of an epoch, in memory of their own."""
    return [{name: tensor.clone() for name, tensor in batch.items()} for batch in loader]


def assert_same(ours: list[dict[str, torch.Tensor]], theirs: list[dict[str, torch.Tensor]]) -> None:
    """Fail unless two lists of batches are equal to the bit."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            assert mine[name].dtype == other[name].dtype
            assert torch.equal(mine[name], other[name]), name


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_two_epochs_are_those_of_the_local_engine(
    cluster: RayCluster, faces: Path, workers: int
) -> None:
    with load(faces, FLOATS, engine="cpu", **OPTIONS) as loader:
        expected = [batches(loader), batches(loader)]
    with load(faces, FLOATS, **ray_options(workers)) as loader:
        assert len(loader) == 9
        assert_same(batches(loader), expected[0])
        assert_same(batches(loader), expected[1])


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_whole_batches_keep_their_strides_and_can_be_written(
    cluster: RayCluster, faces: Path, memory_format: str
) -> None:
    options = {"memory_format": memory_format, "dtype": "bfloat16"}
    with load(faces, FLOATS, engine="cpu", **OPTIONS, **options) as loader:
        expected = batches(loader)
    with load(faces, FLOATS, **ray_options(2, ship="batch"), **options) as loader:
        actual = list(loader)
        assert_same(actual, expected)
        assert actual[0]["image"].stride() == expected[0]["image"].stride()
        actual[0]["image"].zero_()
        assert not actual[0]["image"].any()
        del actual


def test_resumes_in_mid_epoch(cluster: RayCluster, faces: Path) -> None:
    with load(faces, PIPELINE, engine="cpu", **OPTIONS) as loader:
        expected = batches(loader)
    with load(faces, PIPELINE, **ray_options(2)) as loader:
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        state = loader.state_dict()
        del iterator
    with load(faces, PIPELINE, **ray_options(1)) as loader:
        loader.load_state_dict(state)
        assert_same(batches(loader), expected[4:])
