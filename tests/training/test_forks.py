"""Where a loader must not be made or used: it says so, and does not hang."""

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import gpupipe
from helpers.forks import in_fork, said_by


class Nested(Dataset[str]):
    """Loads in a worker."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        return said_by(lambda: gpupipe.load(self._config, device="cpu"))


def test_load_in_a_worker_is_refused(config: dict[str, Any]) -> None:
    (said,) = next(iter(DataLoader(Nested(config), num_workers=1)))
    assert "load() was called in a worker of a DataLoader" in said
    assert gpupipe.load(config).engine.name == "dataloader", "and here it is not"


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
def test_a_loader_of_the_parent_is_refused_in_a_forked_process(
    config: dict[str, Any], engine: str
) -> None:
    with gpupipe.load(config, device="cpu", engine=engine) as loader:
        next(iter(loader))
        assert "belongs to process" in in_fork(lambda: said_by(lambda: next(iter(loader))))
        assert len(list(loader)) == len(loader), "and the parent's goes on"


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
def test_a_loader_of_its_own_works_in_a_forked_process(
    config: dict[str, Any], faces: Path, engine: str
) -> None:
    """Also where DALI ran in the parent before."""
    options = {"device": "cpu", "engine": engine, "batch_size": 10}
    with gpupipe.load(config, **options | {"engine": "dali"}) as before:
        expected = [b["id"].tolist() for b in before]

        def ids() -> str:
            with gpupipe.load(config, **options) as loader:
                return str([b["id"].tolist() for b in loader])

        assert in_fork(ids) == str(expected)
