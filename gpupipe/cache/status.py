"""What a cache holds, and who is at work in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpupipe.cache import epochs, listing
from gpupipe.cache.folder import CacheFolder


@dataclass(frozen=True)
class Status:
    """A cache at a moment.

    bytes: on disk, with all that is reserved, of max_bytes. rows: of the data set, None where it is
    not listed yet. samples, shards: of the newest generation; evicted: shards so far. epochs: that
    began, with `asked` samples in all. hit_rate: the share of these that an earlier epoch had
    already, so that nothing had to be fetched for them; None before the first. fetch_rate: bytes a
    second over all samplers, as of the last seconds. samplers: what each says of itself. pinned:
    the generations that epochs train on.
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
    """The status of a folder."""
    rows = len(listing.opened(folder)) if listing.is_there(folder) else None
    with folder.lock():
        folder.tidy()
        used, began = folder.usage(), epochs.read(folder)
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
        len(began),
        sum(e.samples for e in began),
        _hit_rate(folder, began),
        sum(s.get("rate", 0.0) for s in samplers),
        pinned,
        samplers,
    )


def _hit_rate(folder: CacheFolder, began: list[epochs.Epoch]) -> float | None:
    asked = sum(e.samples for e in began)
    if not asked:
        return None
    newest = max(e.generation for e in began)
    came = folder.manifest.published_at()
    first = sum(
        folder.manifest.known[name].samples
        for name, generation in came.items()
        if generation <= newest
    )
    return max(0.0, 1 - first / asked)
