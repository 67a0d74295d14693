"""Waits for download workers, as long as there is hope, and says what it waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.filling.worker_pool import WorkerPool
from gpupipe.errors import DataError, StateError

T = TypeVar("T")
_log = logging.getLogger("gpupipe")
_POLL_SECONDS = 0.1
_LOG_AFTER_SECONDS = 1.0
_NO_WORKERS = (
    "no download worker is running: run 'gpupipe cache fill CONFIG --serve', or set "
    "data.cache.workers"
)

WorkerReports = dict[str, dict[str, Any]]
"""What the download workers of all processes report, by the name of their claim."""


def wait_until(
    folder: CacheFolder, workers: WorkerPool, purpose: str, attempt: Callable[[], T | str]
) -> T:
    """Call `attempt` until it returns something other than a reason to wait.

    Args:
        folder: The cache.
        workers: The download workers of this process, which are restarted if they were killed.
        purpose: The beginning of the messages, such as "epoch 3 waits".
        attempt: Returns a result, or as a str why there is none yet.

    Returns:
        What `attempt` returned.

    Raises:
        DataError: Waiting cannot help, or nothing happens for data.cache.wait seconds.
    """
    began = last_change = time.monotonic()
    last_state, is_logged = None, False
    while isinstance(result := attempt(), str):
        now, reports = time.monotonic(), folder.read_claims("workers")
        workers.restart_killed()
        _refuse_full_cache(folder, reports)
        state = (
            folder.commit_log.generation,
            sum(report.get("bytes", 0) for report in reports.values()),
        )
        last_change, last_state = (now, state) if state != last_state else (last_change, last_state)
        if now - last_change > folder.options.wait:
            raise DataError(
                f"{purpose}: {result}, and nothing came for {now - last_change:.0f} s "
                f"(data.cache.wait): {_describe_workers(workers, reports)}"
            )
        if not is_logged and now - began > _LOG_AFTER_SECONDS:
            is_logged = True
            _log.warning(
                "gpupipe cache: %s: %s (%s)", purpose, result, _describe_workers(workers, reports)
            )
        time.sleep(_POLL_SECONDS)
    return result


def _describe_workers(workers: WorkerPool, reports: WorkerReports) -> str:
    """Return the states and failures that the download workers report."""
    if not reports:
        return "download workers are starting" if len(workers) else _NO_WORKERS
    states = [str(report.get("state", "starting")) for report in reports.values()]
    failures = [why for report in reports.values() for why in report.get("failures", [])]
    return "; ".join(dict.fromkeys([*states, *failures]))


def _refuse_full_cache(folder: CacheFolder, reports: WorkerReports) -> None:
    """Raise DataError if `epoch: full` waits on a full cache, from which nothing is evicted."""
    if folder.options.epoch == "full" and any(
        str(report.get("state", "")).startswith("waiting: the cache is full")
        for report in reports.values()
    ):
        raise DataError(
            explain_too_large(folder, "the cache is full before the whole data set is in it")
        )


def refuse_lost_shards(folder: CacheFolder, missing: set[str]) -> None:
    """Raise StateError if a missing shard cannot be fetched again.

    Args:
        folder: The cache.
        missing: Names of shards.
    """
    for report in folder.read_claims("workers").values():
        for name, why in report.get("lost", {}).items():
            if name in missing:
                raise StateError(
                    f"{folder.shard_path(name)}: was evicted and cannot be fetched again: {why}"
                )


def explain_too_large(folder: CacheFolder, why: str) -> str:
    """Return the message for a data set that does not fit into the cache under `epoch: full`.

    Args:
        folder: The cache.
        why: The first part of the message.
    """
    return (
        f"{why}: data.cache.max_bytes is {folder.options.max_bytes:,}; make it larger, or set "
        f"data.cache.epoch: grow ({folder.dir})"
    )
