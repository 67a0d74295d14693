"""Loaders over a growing cache, and processes that tests wait for."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpupipe
from gpupipe.cache.cache_folder import CacheFolder

STEPS = ["decode", {"random_crop": {"size": 64}}]


Config = Callable[..., dict[str, Any]]


def load(config: dict[str, Any], **options: Any) -> gpupipe.Loader:
    return gpupipe.load(config, **{"device": "cpu", "ids": True, "batch_size": 4, **options})


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["id"]]


def complete(config: dict[str, Any]) -> CacheFolder:
    """The cache's folder, when all is in it."""
    from gpupipe import config as configs
    from gpupipe.cache.worker_pool import WorkerPool

    source: Any = configs.read(config).source
    source.index()
    workers = WorkerPool(source.dataset, source.cache, 1, "fill")
    while workers.read_outcomes() is None:
        time.sleep(0.02)
    workers.stop()
    return CacheFolder(source.cache)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def waited(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `what` gives when it gives anything."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found
