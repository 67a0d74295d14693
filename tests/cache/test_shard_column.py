"""Shards of the cache that are damaged on the disk, or removed by hand, while epochs train."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.cache import shard_files
from gpupipe.cache.cache_folder import CacheFolder
from helpers.cached_loading import STEPS, Config, complete, ids, load, waited
from helpers.loaders import ENGINES

WORKERS: list[dict[str, Any]] = [*ENGINES[:2], {"engine": "dataloader", "workers": 2}]


def damage(folder: CacheFolder, names: list[str], count: int = 1000) -> None:
    """Change some bytes of the first `count` images in each shard; most of them still decode."""
    for name in names:
        shard = folder.commit_log.published[name]
        data = bytearray(folder.shard_path(name).read_bytes())
        table = shard_files.load_table(folder.table_path(name), shard.table_hash)
        for offset, length in table[1:3].T[:count].tolist():
            data[offset + length * 3 // 4] ^= 0x55
        folder.shard_path(name).write_bytes(data)


def shards_of(folder: CacheFolder) -> list[str]:
    folder.commit_log.refresh()
    return sorted(folder.commit_log.live_shards())


def check_same_batches(loader: gpupipe.Loader, faces: Path, options: dict[str, Any]) -> None:
    plain = {"data": {"source": "folder", "root": str(faces)}, "pipeline": STEPS}
    with load(plain, **options) as ordinary:
        for a, b in zip(loader, ordinary, strict=True):
            assert a["id"].tolist() == b["id"].tolist()
            assert (a["image"] == b["image"]).all()


def check_shards(folder: CacheFolder) -> None:
    for name in shards_of(folder):
        shard = folder.commit_log.published[name]
        assert shard_files.hash_file(folder.shard_path(name)) == shard.hash


@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_a_damaged_shard_is_fetched_again_and_never_trained_on(
    config: Config, faces: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder = complete(config(workers=0))
    damaged = shards_of(folder)[1:4]
    damage(folder, damaged)
    with load(config(workers=1), **options) as loader:
        check_same_batches(loader, faces, options)
    check_shards(folder)
    if options.get("workers") != 2:  # those log in their own processes
        assert f"{damaged[0]}.tar: damaged or gone: it is fetched again" in caplog.text


@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_shards_that_are_removed_by_hand_are_fetched_again(
    config: Config, tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = complete(config(workers=0))
    for name in shards_of(folder)[:2]:
        folder.shard_path(name).unlink()
    with load(config(workers=1), **options) as loader:
        epoch = iter(loader)
        got = ids([next(epoch)])
        (folder.dir / "shards").rename(tmp_path / "removed")
        assert sorted(got + ids(epoch)) == list(range(60))
        assert sorted(ids(loader)) == list(range(60))
    check_shards(folder)


@pytest.mark.parametrize("options", ENGINES[:2], ids=str)
def test_a_worker_that_is_killed_meanwhile_is_restarted(
    config: Config, tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = complete(config(workers=0))
    with load(config(workers=1), **options) as loader:
        epoch = iter(loader)
        got = ids([next(epoch)])
        (worker,) = waited(lambda: [c["pid"] for c in folder.read_claims("workers").values() if c])
        (folder.dir / "shards").rename(tmp_path / "removed")
        os.kill(worker, signal.SIGKILL)
        assert sorted(got + ids(epoch)) == list(range(60))


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_damaged_image_that_nobody_can_fetch_is_a_broken_sample(
    config: Config, options: dict[str, Any]
) -> None:
    folder = complete(config(workers=0))
    name = shards_of(folder)[0]
    damage(folder, [name], 1)
    with (
        load(config(workers=0), **options) as loader,
        pytest.raises(
            gpupipe.SampleError,
            match=rf"{name}.tar:.*: it is damaged on the disk, or gone, and no download worker is "
            r"running .*gpupipe cache verify",
        ),
    ):
        ids(loader)
    with load(config(workers=0), on_error="skip", max_bad=0.5, **options) as loader:
        assert len(ids(loader)) == 59
    assert folder.shard_path(name).exists(), "the rest of it is good"


def test_a_damaged_shard_whose_samples_changed_is_a_broken_sample(
    config: Config, faces: Path, tmp_path: Path
) -> None:
    root = tmp_path / "faces"
    shutil.copytree(faces, root)
    settings = config(workers=0, url=f"file://{root}")
    folder = complete(settings)
    name = shards_of(folder)[0]
    damage(folder, [name], 1)
    for file in root.rglob("*.jpg"):
        file.write_bytes(b"another file")
    with (
        load(config(workers=1, retries=0, url=f"file://{root}"), engine="cpu") as loader,
        pytest.raises(gpupipe.SampleError, match=rf"{name}.tar:.*cannot be fetched again: .*"),
    ):
        ids(loader)


def test_an_image_is_checked_once_in_a_process(config: Config) -> None:
    folder = complete(config(workers=0))
    with load(config(workers=0), engine="cpu") as loader:
        assert len(ids(loader)) == 60
        damage(folder, shards_of(folder))
        column = loader.index.columns["image"]
        assert len(column.read(np.arange(60))) == 60
    with load(config(workers=0), engine="cpu") as loader, pytest.raises(gpupipe.SampleError):
        ids(loader)
