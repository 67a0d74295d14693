"""load() starts a worker of a remote data set before it imports what it needs itself."""

import os
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from helpers.cached_loading import STEPS
from helpers.leftovers import list_children

pytestmark = pytest.mark.usefixtures("forked_executable")


def count_children() -> int:
    return len(list_children(os.getpid()))


def config_of(faces: Path, tmp_path: Path, **cache: Any) -> dict[str, Any]:
    options = {"dir": str(tmp_path / "cache"), "max_bytes": "8MB", "shard_size": "1MB", **cache}
    data = {"source": "remote", "url": f"file://{faces}", "cache": options}
    return {"data": data, "pipeline": STEPS, "loader": {"engine": "cpu", "batch_size": 4}}


def test_the_worker_that_starts_early_is_one_of_the_cache(faces: Path, tmp_path: Path) -> None:
    with gpupipe.load(config_of(faces, tmp_path, workers=0)):
        before = count_children()  # it listed the data set, and is of no further use
    for _ in range(2):  # with a listing, and without
        with gpupipe.load(config_of(faces, tmp_path, workers=1)) as loader:
            assert count_children() == before + 1
            assert len(next(iter(loader))["image"]) == 4
        assert count_children() == before
        (tmp_path / "cache" / "listing.idx").unlink()


def test_an_error_leaves_no_worker(faces: Path, tmp_path: Path) -> None:
    before = count_children()
    with pytest.raises(gpupipe.ConfigError, match=r"data\.cache\.worker"):
        gpupipe.load(config_of(faces, tmp_path, worker=1))
    assert count_children() == before
