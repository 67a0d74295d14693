"""load() starts a worker of a remote data set before it imports what it needs itself."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpupipe
from gpupipe.opening import start_early_worker
from helpers.cached_loading import STEPS
from helpers.faulty_store import serve
from helpers.leftovers import list_children

pytestmark = pytest.mark.usefixtures("forked_executable")
REMOTE = {"data": {"source": "remote", "url": "file:///photographs"}}
FOLDER = {"data": {"source": "folder", "root": "/photographs/remote"}}


def new_children(before: set[int]) -> set[int]:
    return set(list_children(os.getpid())) - before


@pytest.fixture
def before() -> set[int]:
    """The children of this process, after that which the others are forks of has begun."""
    with start_early_worker(REMOTE, (), {}):
        pass
    return set(list_children(os.getpid()))


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


@pytest.mark.parametrize("is_file", [False, True])
def test_the_worker_lists_the_data_set_while_the_config_is_read(
    faces: Path, tmp_path: Path, is_file: bool
) -> None:
    with serve(faces) as (url, faults):
        config: Any = config_of(faces, tmp_path, workers=1, epoch="full")
        config["data"]["url"] = url
        if is_file:
            (tmp_path / "c.yaml").write_text(yaml.dump(config))
            config = tmp_path / "c.yaml"
        with gpupipe.load(config, "loader.seed=1") as loader:
            assert sum(len(batch["image"]) for batch in loader) == len(loader.index)
        assert faults.asked.count("/") == 1
        assert len(faults.asked) == len(set(faults.asked)), "nothing is asked for twice"


@pytest.mark.parametrize(
    ("config", "overrides", "changes", "is_remote"),
    [
        (REMOTE, (), {}, True),
        (FOLDER, (), {}, False),
        (FOLDER, ("data.source=remote", "data.url=file:///a"), {}, True),
        ("lfw", (), REMOTE, True),
        ("data: {source: remote, url: file:///a}", (), {}, True),
        ("data:\n  url: file:///a\n  source: 'remote'\n", (), {}, True),
        ("data: {source: remotely}", (), {}, False),
        ("lfw", (), {}, False),
        ([1, 2], (), {}, False),
        ({"data": None}, (), {}, False),
    ],
)
def test_the_text_of_a_config_says_whether_one_starts(
    tmp_path: Path,
    before: set[int],
    config: Any,
    overrides: tuple[str, ...],
    changes: dict[str, Any],
    is_remote: bool,
) -> None:
    if isinstance(config, str) and ":" in config:
        path = tmp_path / "config.yaml"
        path.write_text(config)
        config = path
    with start_early_worker(config, overrides, changes):
        assert len(new_children(before)) == is_remote
    assert new_children(before) == set()


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_what_may_never_end_is_not_read(tmp_path: Path, before: set[int], name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with start_early_worker(tmp_path / name, (), {}):
        assert new_children(before) == set()


def test_only_the_first_rank_starts_one(before: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with start_early_worker(REMOTE, (), {}):
        assert new_children(before) == set()
