"""Evicts shards to make room.

An evicted shard is not in the generations that follow. Its file is removed when no epoch trains on
it any more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from gpupipe.cache import epochs
from gpupipe.cache.disk import on_disk
from gpupipe.cache.folder import CacheFolder

_HEADROOM = 1 << 18
"""Bytes that stay free for what no claim reserves: pins, and lines in epochs.jsonl."""


def fits(folder: CacheFolder, need: int, free: int | None = None) -> bool:
    """Return whether `need` more bytes fit under max_bytes. Needs the lock, after `tidy`.

    Args:
        folder: The cache.
        need: Bytes to add.
        free: Bytes that must stay free; by default the headroom.
    """
    return (
        folder.usage() + need + (headroom(folder) if free is None else free)
        <= folder.options.max_bytes
    )


def headroom(folder: CacheFolder) -> int:
    """Return the bytes that stay free: 256 KiB, or a sixteenth of max_bytes if that is less."""
    return min(_HEADROOM, folder.options.max_bytes // 16)


def make_room(folder: CacheFolder, need: int) -> bool:
    """Evict used shards if necessary, and return whether there is room for `need` bytes.

    Needs the lock, after `tidy`. Only shards that an epoch has used are evicted, and never more
    than half of the shards: an epoch that begins needs some while the previous one still holds its
    own. Under `epoch: full` nothing is evicted. Otherwise shards go until the cache takes low_water
    of max_bytes.

    Args:
        folder: The cache.
        need: Bytes to add.
    """
    if fits(folder, need):
        return True
    if folder.options.epoch == "full":
        return False
    used = epochs.last_used(folder)
    alive = folder.manifest.alive()
    candidates = [name for name in _eviction_order(folder, alive, used) if name in used]
    goal = int(folder.options.low_water * folder.options.max_bytes)
    evict(
        folder,
        _take_until_freed(
            folder,
            candidates[: len(alive) // 2],
            folder.usage() - _bytes_being_freed(folder) + need - goal,
        ),
        "to make room",
    )
    return fits(folder, need)


def make_room_for_pinned(folder: CacheFolder, need: int) -> bool:
    """Make room for a missing shard of a pinned generation, and return whether there is room.

    Needs the lock, after `tidy`. Every shard that no epoch has pinned may be evicted, and half of
    the headroom may be used. If that is not enough, the tables of evicted shards are removed. The
    generation once fitted, but since then the manifest and these tables have grown.

    Args:
        folder: The cache.
        need: Bytes to add.
    """
    if not fits(folder, need):
        pinned = folder.pinned()
        candidates = [
            name
            for name in _eviction_order(folder, folder.manifest.alive(), epochs.last_used(folder))
            if name not in pinned
        ]
        excess = folder.usage() + need + headroom(folder) - folder.options.max_bytes
        evict(
            folder,
            _take_until_freed(folder, candidates, excess),
            "to make room for a pinned generation",
        )
    if not fits(folder, need):
        folder.prune(0)
    return fits(folder, need, headroom(folder) // 2)


def down_to(folder: CacheFolder, size: int) -> list[str]:
    """Evict unpinned shards until the folder takes at most `size` bytes, as far as possible.

    Needs the lock.

    Args:
        folder: The cache.
        size: Bytes on disk.

    Returns:
        The names of the evicted shards.
    """
    folder.tidy()
    pinned = folder.pinned()
    candidates = [
        name
        for name in _eviction_order(folder, folder.manifest.alive(), epochs.last_used(folder))
        if name not in pinned
    ]
    names = _take_until_freed(folder, candidates, folder.usage() - size)
    evict(folder, names, "asked for")
    return names


def evict(folder: CacheFolder, names: list[str], why: str) -> None:
    """Evict these shards now, and give the reason `why` in the manifest. Needs the lock."""
    if names:
        folder.manifest.evict(names, why)
        folder.tidy()


def _bytes_being_freed(folder: CacheFolder) -> int:
    """Return the bytes of evicted shards whose files an epoch still holds."""
    shards = folder.manifest.known
    return sum(
        on_disk(shards[name].bytes)
        for name in folder.there() - folder.manifest.alive().keys()
        if name in shards
    )


def _take_until_freed(folder: CacheFolder, names: Iterable[str], excess: int) -> list[str]:
    """Return the first of `names` that together free `excess` bytes."""
    chosen = []
    for name in names:
        if excess <= 0:
            break
        chosen.append(name)
        excess -= on_disk(folder.manifest.known[name].bytes)
    return chosen


def _eviction_order(folder: CacheFolder, names: Iterable[str], used: dict[str, float]) -> list[str]:
    """Return the names in the order of eviction."""
    order: dict[str, Callable[[str], tuple[float, str]]] = {
        "fifo": lambda name: (0.0, name),
        "lru": lambda name: (used.get(name, float("inf")), name),
        "random": lambda name: (random.random(), name),
    }
    return sorted(names, key=order[folder.options.policy])
