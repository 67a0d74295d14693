"""Download workers: started, watched, started again and ended."""

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.worker_pool import WorkerPool, list_dataset
from gpupipe.errors import DataError
from helpers.cache_contents import rows_of
from helpers.cached_loading import alive, waited
from helpers.leftovers import list_children


def pids_of(folder: CacheFolder) -> list[int]:
    return [claim["pid"] for claim in folder.read_claims("workers").values() if claim]


def prepared(blobs: Path, tmp_path: Path) -> tuple[DataSet, CacheFolder, set[int]]:
    """A data set, its empty cache, and the children of this process."""
    options = CacheOptions(dir=tmp_path / "cache", max_bytes="4MB", shard_size="100kB")
    data = DataSet(url=f"file://{blobs}")
    return data, prepare_folder(options, data), set(list_children(os.getpid()))


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
        workers.restart_killed()
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
    before = set(list_children(os.getpid()))
    with pytest.raises(DataError, match="no such folder") as failure:
        list_dataset(nowhere, other)
    assert set(list_children(os.getpid())) == before, failure


def test_the_process_that_listed_a_data_set_fills_the_cache(blobs: Path, tmp_path: Path) -> None:
    data, folder, before = prepared(blobs, tmp_path)
    options = folder.options
    idle = list_dataset(data, options)
    (lister,) = set(list_children(os.getpid())) - before
    copy = pickle.loads(pickle.dumps(idle))
    WorkerPool(data, options, 1, idle=copy).stop()
    assert alive(lister)
    workers = WorkerPool(data, options, 1, "fill", idle)
    assert set(list_children(os.getpid())) - before == {lister}
    assert waited(workers.read_outcomes, 100)[0]["outcome"] == "complete"
    assert sorted(rows_of(folder)) == list(range(40))
    workers.stop()
    assert idle.take(b"") == []


def test_a_process_that_is_to_do_no_more_than_list_ends_with_its_handle(
    blobs: Path, tmp_path: Path
) -> None:
    data, folder, before = prepared(blobs, tmp_path)
    options = folder.options
    idle = list_dataset(data, options)
    (lister,) = set(list_children(os.getpid())) - before
    del idle
    assert not alive(lister)
    folder.listing_path.unlink()
    idle = list_dataset(data, options)
    (lister,) = set(list_children(os.getpid())) - before
    workers = WorkerPool(data, options, 0, idle=idle)  # of a rank that fetches nothing
    assert not alive(lister)
    assert len(workers) == len(idle.take(b"")) == 0
