"""Loaders on the Ray engine in tests, and the batches of the local engine that they must equal."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from gpupipe import config as configs
from gpupipe.engines.base import Job
from helpers.loaders import load

PIPELINE = ["decode", {"resize": {"size": [32, 40]}}, {"random_affine": {"degrees": 20}}]
FLOATS = [*PIPELINE, {"to_dtype": {"dtype": "float32", "scale": True}}]
OPTIONS: dict[str, Any] = {"batch_size": 7, "threads": 1}
Batches = list[dict[str, torch.Tensor]]


def ray_options(workers: Any, **more: Any) -> dict[str, Any]:
    """Settings of the Ray engine with the CPU engine inside."""
    ray = {"workers": workers, "cpus": 1, "engine": "cpu", **more}
    return {"batch_size": OPTIONS["batch_size"], "engine": "ray", "ray": ray}


def batches(loader: Iterable[dict[str, torch.Tensor]]) -> Batches:
    """The batches of an epoch, in memory of their own."""
    return [{name: tensor.clone() for name, tensor in batch.items()} for batch in loader]


def local_batches(root: Path, pipeline: Sequence[Any], epoch: int = 0, **options: Any) -> Batches:
    """The batches of an epoch of the CPU engine in this process."""
    with load(root, pipeline, **{"engine": "cpu", **OPTIONS, **options}) as loader:
        loader.sampler.set_epoch(epoch)
        return batches(loader)


def assert_same(ours: Batches, theirs: Batches) -> None:
    """Fail unless two lists of batches are equal to the bit."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            assert mine[name].dtype == other[name].dtype
            assert torch.equal(mine[name], other[name]), name


def job_of(root: Path, **options: Any) -> Job:
    """A job of a folder, with the steps of FLOATS."""
    config = configs.read(
        {"data": {"source": "folder", "root": root}, "pipeline": FLOATS}, device="cpu", **options
    )
    return Job(config.source.index(), config.pipeline, config.loader, 1)
