"""Waits for download workers while they make progress, and logs the reason.

`wait_until` waits for shards before an epoch begins. `refetch_image` waits for a shard that turns
out to be damaged or missing during the epoch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.filling.worker_pool import WorkerPool, restart_killed_workers
from gpupipe.cache.settings import CacheOptions
from gpupipe.errors import DataError, StateError

T = TypeVar("T")
Image = NDArray[np.uint8]
_log = logging.getLogger("gpupipe")
_POLL_SECONDS = 0.1
_LOG_AFTER_SECONDS = 1.0
_START_SECONDS = 60.0
"""How long download workers may take to start."""
_MEMORY_SECONDS = 60.0
_NO_WORKERS = (
    "no download worker is running: run 'gpupipe cache fill CONFIG --serve', or set "
    "data.cache.workers"
)

_failures: dict[str, tuple[float, str]] = {}
"""When and why a shard could not be fetched again, by path. So later reads fail without a wait."""

WorkerReports = dict[str, dict[str, Any]]
"""The last report of each running download worker, by the name of the worker's claim."""


def wait_until(
    folder: CacheFolder, workers: WorkerPool, purpose: str, attempt: Callable[[], T | str]
) -> T:
    """Call `attempt` until it returns a result in place of a reason to wait.

    Args:
        folder: The cache.
        workers: The download workers of this process, which are restarted if they were killed.
        purpose: The beginning of the messages, such as "epoch 3 waits".
        attempt: Returns the result, or a str with the reason to wait.

    Returns:
        The result of `attempt`.

    Raises:
        DataError: Waiting cannot help, or workers make no progress for data.cache.wait seconds.
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


def refetch_image(options: CacheOptions, shard: str, read: Callable[[], Image | None]) -> Image:
    """Wait until a damaged or missing shard is fetched again, and return one of its images.

    Removes the file of a damaged shard, so that the download workers fetch it again.

    Args:
        options: The settings of the cache.
        shard: The shard's name.
        read: Reads the image; returns None if the image is damaged or the shard is missing.

    Raises:
        OSError: The shard cannot be fetched again. The message says why.
    """
    folder = CacheFolder(options)
    path = str(folder.shard_path(shard))
    if (image := read()) is not None:
        return image
    failed, why = _failures.get(path, (0.0, ""))
    if why and time.monotonic() - failed < _MEMORY_SECONDS:
        raise OSError(why)
    _log.warning("gpupipe cache: %s: damaged or gone: it is fetched again", path)
    try:
        return _wait_for_image(folder, shard, read)
    except (OSError, DataError) as e:
        _failures[path] = time.monotonic(), str(e)
        raise OSError(str(e)) from e


def explain_broken_row(options: CacheOptions, row: int) -> str:
    """Return why a sample of an epoch is broken, and thus in no shard.

    Args:
        options: The settings of the cache.
        row: The sample's row of the data set.
    """
    log = CacheFolder(options).commit_log
    try:
        log.refresh()
    except DataError as e:
        return str(e)
    return log.broken_rows().get(row, "changed since it was listed, and was then changed back")


def _wait_for_image(folder: CacheFolder, shard: str, read: Callable[[], Image | None]) -> Image:
    began = last_change = time.monotonic()
    last_bytes = 0
    while (image := read()) is None:
        restart_killed_workers()  # the main thread, which does it too, may wait for this image
        reports = _remove_damaged(folder, shard, read)
        _refuse_lost(shard, reports)
        now, fetched = time.monotonic(), sum(int(r.get("bytes", 0)) for r in reports)
        last_change, last_bytes = (now if fetched != last_bytes else last_change), fetched
        patience = _START_SECONDS if folder.options.workers else 0.0
        if not reports and now - began >= patience:
            raise OSError(
                "it is damaged on the disk, or gone, and no download worker is running that could "
                "fetch it again: run 'gpupipe cache verify CONFIG'"
            )
        if now - last_change > folder.options.wait:
            raise OSError(
                "it is damaged on the disk, or gone, and was not fetched again in "
                f"{now - last_change:.0f} s (data.cache.wait)"
            )
        time.sleep(_POLL_SECONDS)
    return image


def _remove_damaged(
    folder: CacheFolder, shard: str, read: Callable[[], Image | None]
) -> list[dict[str, Any]]:
    """Remove a damaged shard's file if a download worker is running, which fetches it again.

    Returns the reports of the running download workers. Raises OSError if the shard was evicted.
    """
    with folder.lock():
        folder.remove_leftovers()
        if shard not in folder.list_pinned_shards() | folder.commit_log.live_shards().keys():
            raise OSError("it was evicted")
        reports = list(folder.read_claims("workers").values())
        if reports and read() is None:
            folder.shard_path(shard).unlink(missing_ok=True)
    return reports


def _refuse_lost(shard: str, reports: list[dict[str, Any]]) -> None:
    for report in reports:
        if why := report.get("lost", {}).get(shard):
            raise OSError(f"it is damaged on the disk, or gone, and cannot be fetched again: {why}")
