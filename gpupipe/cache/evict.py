"""Makes room. A shard that is evicted is not in the generations that follow, and its file goes when
no epoch is left that trains on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from gpupipe.cache import epochs
from gpupipe.cache.disk import on_disk
from gpupipe.cache.folder import CacheFolder

_HEADROOM = 1 << 18
"""Bytes that are kept free for what is not reserved: pins, and the lines that epochs add."""


def fits(folder: CacheFolder, need: int, free: int | None = None) -> bool:
    """Whether `need` more bytes stay under max_bytes, and leave `free` bytes, by default the
    headroom. Needs the lock, behind `tidy`.
    """
    return (
        folder.usage() + need + (headroom(folder) if free is None else free)
        <= folder.options.max_bytes
    )


def headroom(folder: CacheFolder) -> int:
    """What is kept free, bytes."""
    return min(_HEADROOM, folder.options.max_bytes // 16)


def make_room(folder: CacheFolder, need: int) -> bool:
    """Whether there is room for `need` bytes, as far as shards that were trained on can be evicted
    for it. Needs the lock, behind `tidy`.

    Evicted are shards that an epoch has had, and never more than half of them: an epoch that begins
    needs some while the one before still holds its own. With `epoch: full` none is.
    """
    if fits(folder, need):
        return True
    if folder.options.epoch == "full":
        return False
    used = epochs.last_used(folder)
    alive = folder.manifest.alive()
    candidates = [name for name in _in_order(folder, alive, used) if name in used]
    goal = int(folder.options.low_water * folder.options.max_bytes)
    evict(
        folder,
        _enough(
            folder, candidates[: len(alive) // 2], folder.usage() - _going(folder) + need - goal
        ),
        "to make room",
    )
    return fits(folder, need)


def make_room_for_pinned(folder: CacheFolder, need: int) -> bool:
    """The same for a shard that an epoch waits for: all that no epoch has pinned may go, and half
    of the headroom. Needs the lock, behind `tidy`.

    For since that generation was whole, there are more lines in the manifest, and more tables of
    what was evicted.
    """
    if not fits(folder, need):
        pinned = folder.pinned()
        candidates = [
            name
            for name in _in_order(folder, folder.manifest.alive(), epochs.last_used(folder))
            if name not in pinned
        ]
        excess = folder.usage() + need + headroom(folder) - folder.options.max_bytes
        evict(folder, _enough(folder, candidates, excess), "to make room for a pinned generation")
    if not fits(folder, need):
        folder.prune(0)
    return fits(folder, need, headroom(folder) // 2)


def down_to(folder: CacheFolder, size: int) -> list[str]:
    """Evict what no epoch has pinned until the folder takes at most `size` bytes, as far as that
    goes. Returns the names. Needs the lock.
    """
    folder.tidy()
    pinned = folder.pinned()
    candidates = [
        name
        for name in _in_order(folder, folder.manifest.alive(), epochs.last_used(folder))
        if name not in pinned
    ]
    names = _enough(folder, candidates, folder.usage() - size)
    evict(folder, names, "asked for")
    return names


def evict(folder: CacheFolder, names: list[str], why: str) -> None:
    """Needs the lock."""
    if names:
        folder.manifest.evict(names, why)
        folder.tidy()


def _going(folder: CacheFolder) -> int:
    """Bytes of shards that were evicted and that an epoch still holds."""
    known = folder.manifest.known
    return sum(
        on_disk(known[name].bytes)
        for name in folder.there() - folder.manifest.alive().keys()
        if name in known
    )


def _enough(folder: CacheFolder, names: Iterable[str], excess: int) -> list[str]:
    """As many of the names, in order, as it takes to free `excess` bytes."""
    chosen = []
    for name in names:
        if excess <= 0:
            break
        chosen.append(name)
        excess -= on_disk(folder.manifest.known[name].bytes)
    return chosen


def _in_order(folder: CacheFolder, names: Iterable[str], used: dict[str, float]) -> list[str]:
    """Those that go first, first."""
    order: dict[str, Callable[[str], tuple[float, str]]] = {
        "fifo": lambda name: (0.0, name),
        "lru": lambda name: (used.get(name, float("inf")), name),
        "random": lambda name: (random.random(), name),
    }
    return sorted(names, key=order[folder.options.policy])
