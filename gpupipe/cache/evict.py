"""Evicts shards to make room, in the order that the setting `policy` determines.

epochs.jsonl records when each epoch began, and with which generation of the cache. Later
generations do not contain an evicted shard. The shard's file is removed when no epoch pins it.
"""

import json
import random
import time
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.shared_files import disk_size, write_all

_HEADROOM = 1 << 18
"""Bytes that stay free for pins and lines in epochs.jsonl, for which no claim reserves bytes."""


@dataclass(frozen=True)
class Epoch:
    """The record of an epoch that began.

    Attributes:
        generation: The generation of the cache that it trains on.
        since: It lacks the shards that were published in the first `since` lines of the commit log.
        samples: Number of its samples; 0 if it was resumed.
        time: When it began, in seconds since 1970.
    """

    generation: int
    since: int
    samples: int
    time: float


def record_epoch(folder: CacheFolder, generation: int, since: int, samples: int) -> None:
    """Record an epoch that begins now. The caller must hold the cache's lock."""
    line = json.dumps(asdict(Epoch(generation, since, samples, time.time())))
    with (folder.dir / "epochs.jsonl").open("ab", buffering=0) as f:
        write_all(f, line.encode() + b"\n")


def read_epochs(folder: CacheFolder) -> list[Epoch]:
    """Return all recorded epochs; skip lines that a killed process left incomplete."""
    try:
        lines = (folder.dir / "epochs.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [e for e in map(_parse_line, lines) if e is not None]


def _parse_line(line: bytes) -> Epoch | None:
    try:
        record: Any = json.loads(line)
        generation, samples = int(record["generation"]), int(record["samples"])
        since = int(record.get("since", 0))  # earlier versions of gpupipe write none
        return Epoch(generation, since, samples, float(record["time"]))
    except (ValueError, KeyError, TypeError):
        return None


def find_last_uses(folder: CacheFolder) -> dict[str, float]:
    """Return a dict from the name of each used shard to the time of its last use.

    This is when the last epoch that used the shard began, in seconds since 1970. Shards that no
    epoch has used are left out. The caller must hold the cache's lock.
    """
    published = folder.commit_log.publication_generations()
    in_order = sorted(published, key=published.__getitem__)
    generations = [published[name] for name in in_order]
    times = np.zeros(len(generations))
    for epoch in sorted(read_epochs(folder), key=lambda e: e.time):
        bounds = (bisect_right(generations, n) for n in (epoch.since, epoch.generation))
        times[slice(*bounds)] = epoch.time
    return {name: used for name, used in zip(in_order, times.tolist(), strict=True) if used}


def has_room(folder: CacheFolder, need: int, free: int | None = None) -> bool:
    """Return whether `need` more bytes fit under max_bytes.

    The caller must hold the cache's lock, and have called `remove_leftovers`.

    Args:
        folder: The cache.
        need: Bytes to add.
        free: Bytes that must stay free; by default `headroom_bytes`.
    """
    free = headroom_bytes(folder) if free is None else free
    return folder.count_bytes() + need + free <= folder.options.max_bytes


def headroom_bytes(folder: CacheFolder) -> int:
    """Return the bytes that stay free: 256 KiB, or a sixteenth of max_bytes if that is less."""
    return min(_HEADROOM, folder.options.max_bytes // 16)


def make_room(folder: CacheFolder, need: int) -> bool:
    """Evict shards if necessary, and return whether there is room for `need` bytes.

    The caller must hold the cache's lock, and have called `remove_leftovers`. If there is no room,
    evicts shards until the cache with the new bytes takes at most the share low_water of max_bytes.
    Evicts only shards that an epoch has used, and at most half of all shards: the next epoch needs
    shards while the previous epoch still pins its shards. Under `epoch: full`, evicts nothing.

    Args:
        folder: The cache.
        need: Bytes to add.
    """
    if has_room(folder, need):
        return True
    if folder.options.epoch == "full":
        return False
    log, used = folder.commit_log, find_last_uses(folder)
    live = log.live_shards()
    candidates = [name for name in _sort_for_eviction(folder, used) if name in used]
    # Evicted shards whose files remain because an epoch has pinned them.
    evicted = (folder.list_present_shards() - live.keys()) & log.published.keys()
    size = folder.count_bytes() - sum(disk_size(log.published[name].bytes) for name in evicted)
    excess = size + need - int(folder.options.low_water * folder.options.max_bytes)
    names = _take_until_freed(folder, candidates[: len(live) // 2], excess)
    evict(folder, names, "to make room")
    return has_room(folder, need)


def make_room_for_pinned(folder: CacheFolder, need: int) -> bool:
    """Make room for a missing shard of a pinned generation, and return whether there is room.

    The caller must hold the cache's lock, and have called `remove_leftovers`. May evict any shard
    that no epoch has pinned. If that is not enough, removes the tables of evicted shards, and uses
    half of the headroom. The generation fitted when it was pinned, but the commit log and these
    tables have grown since.

    Args:
        folder: The cache.
        need: Bytes to add.
    """
    if not has_room(folder, need):
        excess = folder.count_bytes() + need + headroom_bytes(folder) - folder.options.max_bytes
        names = _take_until_freed(folder, _list_unpinned(folder), excess)
        evict(folder, names, "to make room for a pinned generation")
    if not has_room(folder, need):
        folder.prune_tables(0)
    return has_room(folder, need, headroom_bytes(folder) // 2)


def evict_down_to(folder: CacheFolder, size: int) -> list[str]:
    """Evict unpinned shards until the folder takes at most `size` bytes, as far as possible.

    The caller must hold the cache's lock.

    Args:
        folder: The cache.
        size: Bytes on disk.

    Returns:
        The names of the evicted shards.
    """
    folder.remove_leftovers()
    names = _take_until_freed(folder, _list_unpinned(folder), folder.count_bytes() - size)
    evict(folder, names, "asked for")
    return names


def evict(folder: CacheFolder, names: list[str], why: str) -> None:
    """Evict shards, and write the reason `why` to the commit log.

    The caller must hold the cache's lock.
    """
    if names:
        folder.commit_log.evict(names, why)
        folder.remove_leftovers()


def _take_until_freed(folder: CacheFolder, names: Iterable[str], excess: int) -> list[str]:
    """Return the shortest prefix of `names` whose shards take at least `excess` bytes."""
    chosen = []
    for name in names:
        if excess <= 0:
            break
        chosen.append(name)
        excess -= disk_size(folder.commit_log.published[name].bytes)
    return chosen


def _list_unpinned(folder: CacheFolder) -> list[str]:
    """Return the live shards that no epoch has pinned, in the order of eviction."""
    pinned, order = folder.list_pinned_shards(), _sort_for_eviction(folder, find_last_uses(folder))
    return [name for name in order if name not in pinned]


def _sort_for_eviction(folder: CacheFolder, used: dict[str, float]) -> list[str]:
    """Return the live shards in the order of eviction; `used` is from `find_last_uses`."""
    names = list(folder.commit_log.live_shards())  # as they were published
    match folder.options.policy:
        case "lru":
            names.sort(key=lambda name: used.get(name, float("inf")))
        case "random":
            random.shuffle(names)
    return names
