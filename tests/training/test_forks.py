"""Where a loader must not be made or used: it says so, and does not hang."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import gpupipe


class Nested(Dataset[str]):
    """Loads in a worker."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        return _said(lambda: gpupipe.load(self._config, device="cpu"))


def _said(act: Any) -> str:
    try:
        act()
    except gpupipe.GpupipeError as e:
        return str(e)
    return "nothing"


def test_load_in_a_worker_is_refused(config: dict[str, Any]) -> None:
    (said,) = next(iter(DataLoader(Nested(config), num_workers=1)))
    assert "load() was called in a worker of a DataLoader" in said
    assert gpupipe.load(config).engine.name == "dataloader", "and here it is not"


@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_a_loader_of_the_parent_is_refused_in_a_forked_process(config: dict[str, Any], engine: str) -> None:
    with gpupipe.load(config, device="cpu", engine=engine) as loader:
        next(iter(loader))
        assert "belongs to process" in _in_fork(lambda: _said(lambda: next(iter(loader))))
        assert len(list(loader)) == len(loader), "and the parent's goes on"


@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_a_loader_of_its_own_works_in_a_forked_process(config: dict[str, Any], faces: Path, engine: str) -> None:
    """Also where DALI ran in the parent before."""
    options = {"device": "cpu", "engine": engine, "batch_size": 10}
    with gpupipe.load(config, **options | {"engine": "dali"}) as before:
        expected = [b["id"].tolist() for b in before]

        def ids() -> str:
            with gpupipe.load(config, **options) as loader:
                return str([b["id"].tolist() for b in loader])

        assert _in_fork(ids) == str(expected)


def _in_fork(act: Any) -> str:
    """What `act` returns in a forked process; fails where that hangs."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        theirs.send(act())

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        assert ours.poll(60), "the forked process hangs"
        return str(ours.recv())
    finally:
        process.join(20)
        process.kill()
        ours.close()


@pytest.mark.gpu
def test_a_gpu_is_refused_behind_a_fork(config: dict[str, Any]) -> None:
    with gpupipe.load(config, device="gpu") as loader:
        next(iter(loader))
        assert "CUDA was in use before this process was forked" in _in_fork(lambda: _said(lambda: gpupipe.load(config, device="gpu")))
