"""Reports what a cache holds, and which processes use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpupipe.cache import epochs, listing
from gpupipe.cache.folder import CacheFolder


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
        asked: Samples of all these epochs together.
        hit_rate: Share of `asked` for which no new sample had to be fetched:
            1 - (samples published up to the generation of the newest epoch) / asked. None if
            `asked` is 0.
        fetch_rate: Bytes per second over all download workers in the last seconds.
        pinned: Generations that epochs train on.
        samplers: What each download worker reports.
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
    asked: int
    hit_rate: float | None
    fetch_rate: float
    pinned: list[int]
    samplers: list[dict[str, Any]]


def of(folder: CacheFolder) -> Status:
    """Return the status of a cache."""
    rows = len(listing.opened(folder)) if listing.is_there(folder) else None
    with folder.lock():
        folder.tidy()
        used, recorded = folder.usage(), epochs.read(folder)
        samplers = list(folder.claims("samplers").values())
        pinned = sorted({int(pin.get("generation", 0)) for pin in folder.claims("pins").values()})
    manifest = folder.manifest
    alive = manifest.alive()
    return Status(
        str(folder.dir),
        used,
        int(folder.options.max_bytes),
        manifest.generation,
        len(alive),
        sum(s.samples for s in alive.values()),
        len(manifest.known) - len(alive),
        rows,
        len(recorded),
        sum(e.samples for e in recorded),
        _compute_hit_rate(folder, recorded),
        sum(s.get("rate", 0.0) for s in samplers),
        pinned,
        samplers,
    )


def _compute_hit_rate(folder: CacheFolder, began: list[epochs.Epoch]) -> float | None:
    asked = sum(e.samples for e in began)
    if not asked:
        return None
    newest = max(e.generation for e in began)
    published_at = folder.manifest.published_at()
    fetched = sum(
        folder.manifest.known[name].samples
        for name, generation in published_at.items()
        if generation <= newest
    )
    return max(0.0, 1 - fetched / asked)
