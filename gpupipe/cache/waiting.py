"""Waits for what download workers fetch.

`wait_until` waits while the workers make progress, and logs the reason. `refetch_image` waits for a
shard that turns out to be damaged or missing during an epoch.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from gpupipe.cache.worker_pool import POOLS, WorkerPool
from gpupipe.errors import DataError, StateError, counted

T = TypeVar("T")
Image = NDArray[np.uint8]
_log = logging.getLogger("gpupipe")
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.01, 0.1
"""The first pause between two looks for what is awaited, and the longest. They grow by a third."""
_LOOK_SECONDS = 0.003
"""The pause between two looks at the size of the commit log, which take a few microseconds."""
_LOG_AFTER_SECONDS = 1.0
_START_SECONDS = 60.0
"""How long download workers may take to start."""
_MEMORY_SECONDS = 60.0
_failures: dict[str, tuple[float, str]] = {}
"""When and why a shard could not be fetched again, by path: the next reads fail without a wait."""


def wait_until(
    folder: CacheFolder, pools: Collection[WorkerPool], purpose: str, attempt: Callable[[], T | str]
) -> T:
    """Call `attempt` until it returns a result, and not a str with the reason to wait.

    Args:
        folder: The cache.
        pools: Pools of this process, whose download workers are restarted if they were killed.
        purpose: The beginning of the messages, such as "epoch 3 waits".
        attempt: Returns the result, or a str with the reason to wait.

    Returns:
        The result of `attempt`.

    Raises:
        DataError: A download worker of `pools` failed, there was no progress for data.cache.wait
            seconds, or `attempt` raised it.
    """
    began = last_change = time.monotonic()
    last_state, is_logged, pause = None, False, _FIRST_POLL_SECONDS
    size = _measure_log(folder)
    while isinstance(result := attempt(), str):
        for pool in pools:
            pool.restart_killed()
        now, reports = time.monotonic(), list(folder.read_claims("workers").values())
        state = folder.commit_log.generation, sum(report.get("bytes", 0) for report in reports)
        last_change, last_state = (now if state != last_state else last_change), state
        if now - last_change > folder.options.wait:
            raise DataError(
                f"{purpose}: {result}, and nothing came for {now - last_change:.0f} s "
                f"(data.cache.wait): {_describe_workers(pools, reports)}"
            )
        if not is_logged and now - began > _LOG_AFTER_SECONDS:
            is_logged = True
            workers = _describe_workers(pools, reports)
            _log.warning("gpupipe cache: %s: %s (%s)", purpose, result, workers)
        _sleep(folder, size, pause)
        pause, size = min(pause * 4 / 3, _POLL_SECONDS), _measure_log(folder)
    return result


def _measure_log(folder: CacheFolder) -> int:
    """Return the bytes of the commit log."""
    try:
        return folder.commit_log.path.stat().st_size
    except OSError:
        return 0


def _sleep(folder: CacheFolder, size: int, seconds: float) -> None:
    """Sleep, but not longer than while the commit log has `size` bytes."""
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0 and _measure_log(folder) == size:
        time.sleep(min(rest, _LOOK_SECONDS))


def _describe_workers(pools: Collection[WorkerPool], reports: list[dict[str, Any]]) -> str:
    """Return the states and failures that the running download workers report."""
    if not reports:
        return (
            "download workers are starting"
            if any(map(len, pools))
            else "no download worker is running: run 'gpupipe cache fill CONFIG --serve', or set "
            "data.cache.workers"
        )
    states = [str(report.get("state", "starting")) for report in reports]
    failures = [why for report in reports for why in report.get("failures", [])]
    return "; ".join(dict.fromkeys([*states, *failures]))


def refuse_full_cache(folder: CacheFolder) -> None:
    """With the setting `epoch: full`, raise DataError if a worker reports that the cache is full.

    The cache is then too small, because such an epoch needs all samples in it.
    """
    if folder.options.epoch == "full" and any(
        str(report.get("state", "")).startswith("waiting: the cache is full")
        for report in folder.read_claims("workers").values()
    ):
        why = "the cache is full before the whole data set is in it"
        raise DataError(explain_too_large(folder, why))


def explain_too_large(folder: CacheFolder, why: str) -> str:
    """Return the message for a data set too large for `epoch: full`. It begins with `why`."""
    return (
        f"{why}: data.cache.max_bytes is {folder.options.max_bytes:,}; make it larger, or set "
        f"data.cache.epoch: grow ({folder.dir})"
    )


def is_exhausted(folder: CacheFolder) -> bool:
    """Return whether a download worker has found that nothing more can come.

    The store refuses all that the cache lacks. The caller must hold the cache's lock.
    """
    newest, reports = folder.commit_log.generation, folder.read_claims("workers").values()
    return any(r.get("exhausted") == newest for r in reports) and not folder.read_claims()


def explain_exhaustion(folder: CacheFolder) -> str:
    """Return why nothing more can come, if `is_exhausted`, and what to do."""
    reports = folder.read_claims("workers").values()
    failures = [why for report in reports for why in report.get("failures", [])]
    if not failures:
        empty = sum(not shard.samples for shard in folder.commit_log.live_shards().values())
        others = f", with {counted(empty, 'shard')} without samples" if empty else ""
        return f"all of the data set is in the cache in {folder.dir}{others}"
    count = max(int(report.get("failed", 0)) for report in reports)
    noun = "shard" if folder.has_stored_shards else "file"
    return (
        f"nothing more can come, because the store refuses {counted(count, noun)}, such as "
        f"{failures[0]}: see data.url and data.storage_options; if the store has changed, delete "
        f"{folder.dir} to list it again"
    )


def refuse_lost_shards(folder: CacheFolder, missing: set[str]) -> None:
    """Raise StateError if a download worker reports that it cannot fetch a missing shard again.

    Args:
        folder: The cache.
        missing: Names of the missing shards.
    """
    for report in folder.read_claims("workers").values():
        for name in report.get("lost", {}).keys() & missing:
            raise StateError(
                f"{folder.shard_path(name)}: was evicted and cannot be fetched again: "
                f"{report['lost'][name]}"
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
    last_start = time.monotonic() + (_START_SECONDS if options.workers else 0.0)

    def attempt() -> Image | str:
        if (image := read()) is not None:
            return image
        with folder.lock():
            folder.remove_leftovers()
            if shard not in folder.list_needed_shards():
                raise OSError("it was evicted")
            reports = list(folder.read_claims("workers").values())
            if reports and read() is None:  # the workers fetch a shard whose file is gone
                folder.shard_path(shard).unlink(missing_ok=True)
        lost = next((r["lost"][shard] for r in reports if shard in r.get("lost", {})), "")
        if lost:
            raise OSError(
                f"it is damaged on the disk, or gone, and cannot be fetched again: {lost}"
            )
        if not reports and time.monotonic() >= last_start:
            raise OSError(
                "it is damaged on the disk, or gone, and no download worker is running that could "
                "fetch it again: run 'gpupipe cache verify CONFIG'"
            )
        return "it waits to be fetched again"

    try:
        # All pools: the main thread, which restarts the workers too, may wait for this image.
        return wait_until(folder, list(POOLS), "it is damaged on the disk, or gone", attempt)
    except (OSError, DataError) as e:
        _failures[path] = time.monotonic(), str(e)
        raise OSError(str(e)) from e
