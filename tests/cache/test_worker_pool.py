"""Download workers: started, watched, waited for, started again and ended."""

from __future__ import annotations

import logging
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import CacheFolder, prepare_folder
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.worker_pool import (
    WorkerPool,
    list_dataset,
    refuse_full_cache,
    refuse_lost_shards,
    wait_until,
)
from gpupipe.errors import DataError, StateError
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


@pytest.fixture
def made(make: Any) -> Any:
    return make(wait=0.3, workers=0)


@pytest.fixture
def nobody(made: Any) -> WorkerPool:
    """No download worker of this process."""
    return WorkerPool(made.dataset, made.folder.options, 0)


@pytest.fixture
def report(made: Any) -> Iterator[dict[str, Any]]:
    """What a download worker of another process reports."""
    content: dict[str, Any] = {"state": "fetching", "bytes": 0}
    with made.folder.lock():
        claim = made.folder.create_claim("workers", "other", content)

    class Report(dict[str, Any]):
        def update(self, *args: Any, **kwargs: Any) -> None:
            super().update(*args, **kwargs)
            claim.write(dict(self))

    yield Report(content)
    claim.release()


def test_it_ends_with_the_first_result(made: Any, nobody: WorkerPool) -> None:
    attempts = iter(["not yet", "not yet", 17])
    assert wait_until(made.folder, [nobody], "epoch 3 waits", lambda: next(attempts)) == 17


def test_nothing_that_comes_is_an_error_with_advice(made: Any, nobody: WorkerPool) -> None:
    with pytest.raises(
        DataError,
        match=r"epoch 3 waits: not yet, and nothing came for 0 s \(data\.cache\.wait\): "
        "no download worker is running: run 'gpupipe cache fill",
    ):
        wait_until(made.folder, [nobody], "epoch 3 waits", lambda: "not yet")


def test_as_long_as_bytes_come_there_is_hope(
    made: Any, nobody: WorkerPool, report: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    count, since_logged = 0, 0

    def attempt() -> int | str:
        nonlocal count, since_logged
        count += 1
        since_logged += bool(caplog.text)
        report.update(bytes=count)
        return count if since_logged == 3 else "not yet"

    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert wait_until(made.folder, [nobody], "epoch 3 waits", attempt) == count
    assert caplog.text.count("epoch 3 waits: not yet (fetching)") == 1


def test_states_and_failures_of_workers_are_told(
    made: Any, nobody: WorkerPool, report: dict[str, Any]
) -> None:
    report.update(state="waiting to try again", failures=["a.jpg: 404", "b.jpg: 404"])
    with pytest.raises(DataError, match=r"try again; a\.jpg: 404; b\.jpg: 404"):
        wait_until(made.folder, [nobody], "epoch 3 waits", lambda: "not yet")


def test_a_full_cache_that_must_hold_all_is_an_error_at_once(
    make: Any, report: dict[str, Any]
) -> None:
    report.update(state="waiting: the cache is full, and more")
    full = make(wait=600, workers=0, epoch="full")
    with pytest.raises(DataError, match=r"full before the whole data set is in it: .*4,000,000"):
        refuse_full_cache(full.folder)


def test_a_shard_that_no_worker_can_fetch_again_ends_a_resume(
    made: Any, report: dict[str, Any]
) -> None:
    report.update(lost={"00000002": "a.jpg changed"})
    refuse_lost_shards(made.folder, {"00000001"})
    with pytest.raises(StateError, match=r"00000002\.tar: .* cannot be fetched again: a\.jpg ch"):
        refuse_lost_shards(made.folder, {"00000001", "00000002"})
