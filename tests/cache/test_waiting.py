"""Waiting for what download workers fetch."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from gpupipe.cache.waiting import is_exhausted, refuse_full_cache, refuse_lost_shards, wait_until
from gpupipe.cache.worker_pool import WorkerPool
from gpupipe.errors import DataError, StateError


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


def test_more_may_come_while_a_shard_is_fetched(make: Any) -> None:
    folder = make().folder
    with folder.lock():
        content = {"exhausted": folder.commit_log.generation}
        report = folder.create_claim("workers", "host-1", content)
        assert is_exhausted(folder)
        claim = folder.create_claim("claims", "00000001", {"reserved": 1, "rows": [0]})
        assert not is_exhausted(folder)
        claim.release()
        assert is_exhausted(folder)
        report.release()
        assert not is_exhausted(folder)
