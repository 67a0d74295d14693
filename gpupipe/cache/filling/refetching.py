"""Has a shard that is damaged or gone fetched again while an epoch trains on it.

Also says what is wrong with a sample that no shard has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.filling.worker_pool import restart_killed_workers
from gpupipe.cache.settings import CacheOptions
from gpupipe.errors import DataError

Image = NDArray[np.uint8]
_POLL_SECONDS = 0.1
_START_SECONDS = 60.0
"""How long download workers may take to start."""
_MEMORY_SECONDS = 60.0
_log = logging.getLogger("gpupipe")
_failures: dict[str, tuple[float, str]] = {}
"""Why a shard could not be fetched again, and when that was. So one dead shard costs one wait."""


def refetch_image(options: CacheOptions, shard: str, read: Callable[[], Image | None]) -> Image:
    """Return an image of a shard that is damaged or gone, after the shard was fetched again.

    Removes the shard if it is damaged, which tells the download workers to fetch it.

    Args:
        options: The settings of the cache.
        shard: The shard's name.
        read: Reads the image; returns None if it is damaged or gone.

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
    """Return what is wrong with a sample of an epoch that is in no shard.

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
    """Remove a shard if it is damaged, and if a download worker is there to fetch it again.

    Returns what the running download workers report.
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
