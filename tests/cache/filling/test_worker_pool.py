"""Download workers: started, watched, started again and ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.filling.worker_pool import WorkerPool, list_dataset, restart_killed_workers
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.errors import DataError
from helpers.cache_contents import rows_of
from helpers.cached_loading import alive, waited


def pids_of(folder: CacheFolder) -> list[int]:
    return [claim["pid"] for claim in folder.read_claims("workers").values() if claim]


def test_workers_that_fill_end_by_themselves_and_say_how(make: Any) -> None:
    made = make()
    workers = WorkerPool(made.dataset, made.folder.options, 2, "fill")
    assert len(workers) == 2
    outcomes = waited(workers.read_outcomes, 100)
    assert [outcome["outcome"] for outcome in outcomes] == ["complete"] * 2
    assert sum(outcome["samples"] for outcome in outcomes) == 40
    assert sorted(rows_of(made.folder)) == list(range(40))
    workers.stop()


def test_a_worker_that_was_killed_is_started_again_until_the_pool_stops(make: Any) -> None:
    made = make()
    workers = WorkerPool(made.dataset, made.folder.options, 1)
    (first,) = waited(lambda: pids_of(made.folder), 100)
    os.kill(first, signal.SIGKILL)

    def second() -> list[int]:
        restart_killed_workers()
        return [pid for pid in pids_of(made.folder) if pid != first]

    (pid,) = waited(second, 100)
    workers.stop()
    workers.stop()
    waited(lambda: not alive(pid), 100)
    workers.restart_killed()
    assert pids_of(made.folder) == [] or not alive(pids_of(made.folder)[0])


def test_the_reason_of_a_worker_that_failed_is_told(make: Any) -> None:
    made = make()
    made.folder.listing_path.write_bytes(b"damage")
    workers = WorkerPool(made.dataset, made.folder.options, 1, "fill")

    def has_failed() -> bool:
        try:
            return workers.read_outcomes() is not None
        except DataError as error:
            assert "listing" in str(error)  # it comes at some time
            return True

    waited(has_failed, 100)
    workers.stop()


def test_a_data_set_is_listed_in_a_process_of_its_own(blobs: Path, tmp_path: Path) -> None:
    options = CacheOptions(dir=tmp_path / "cache", max_bytes="4MB", shard_size="100kB")
    data = DataSet(url=f"file://{blobs}")
    folder = prepare_folder(options, data)
    list_dataset(data, options)
    assert len(listing.load(folder)) == 40
    nowhere = DataSet(url="file:///nowhere")
    other = CacheOptions(dir=tmp_path / "other", max_bytes="4MB", shard_size="100kB")
    prepare_folder(other, nowhere)
    with pytest.raises(DataError, match="no such folder"):
        list_dataset(nowhere, other)
