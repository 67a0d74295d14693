"""Reports what a cache holds, and which processes use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpupipe.cache import epochs, listing
from gpupipe.cache.cache_folder import CacheFolder


@dataclass(frozen=True)
class Status:
    """The state of a cache at one moment.

    Attributes:
        dir: The cache folder.
        bytes: Bytes on disk, with all reservations.
        max_bytes: The most that the folder may take.
        generation: The newest generation.
        shards: Shards of the newest generation.
        samples: Samples of the newest generation.
        evicted: Shards evicted so far.
        rows: Rows of the data set; None if it is not listed yet.
        epochs: Epochs that began.
        requested: Samples of all these epochs together.
        hit_rate: Share of `requested` for which no new sample had to be fetched:
            1 - (samples published up to the generation of the newest epoch) / requested. None
            if `requested` is 0.
        fetch_rate: Bytes per second over all download workers in the last seconds.
        pinned: Generations that epochs train on.
        workers: What each download worker reports.
    """

    dir: str
    bytes: int
    max_bytes: int
    generation: int
    shards: int
    samples: int
    evicted: int
    rows: int | None
    epochs: int
    requested: int
    hit_rate: float | None
    fetch_rate: float
    pinned: list[int]
    workers: list[dict[str, Any]]


def read_status(folder: CacheFolder) -> Status:
    """Return the status of a cache."""
    rows = len(listing.load(folder)) if listing.is_listed(folder) else None
    with folder.lock():
        folder.remove_leftovers()
        used, recorded = folder.count_bytes(), epochs.read_epochs(folder)
        workers = list(folder.read_claims("workers").values())
        pins = folder.read_claims("pins").values()
    log = folder.commit_log
    live = log.live_shards()
    return Status(
        str(folder.dir),
        used,
        int(folder.options.max_bytes),
        log.generation,
        len(live),
        sum(s.samples for s in live.values()),
        len(log.published) - len(live),
        rows,
        len(recorded),
        sum(e.samples for e in recorded),
        _compute_hit_rate(folder, recorded),
        sum(w.get("rate", 0.0) for w in workers),
        sorted({int(pin.get("generation", 0)) for pin in pins}),
        workers,
    )


def _compute_hit_rate(folder: CacheFolder, recorded: list[epochs.Epoch]) -> float | None:
    requested = sum(e.samples for e in recorded)
    if not requested:
        return None
    newest = max(e.generation for e in recorded)
    published_at = folder.commit_log.publication_generations()
    fetched = sum(
        folder.commit_log.published[name].samples
        for name, generation in published_at.items()
        if generation <= newest
    )
    return max(0.0, 1 - fetched / requested)
