"""Records when each epoch began, and with which generation, in epochs.jsonl.

Eviction derives from it if an epoch has used a shard, and when last.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.disk import write_all


@dataclass(frozen=True)
class Epoch:
    """An epoch that began.

    Attributes:
        generation: The generation of the cache that it trains on.
        samples: Number of its samples; 0 if it was resumed.
        time: When it began, in seconds since 1970.
    """

    generation: int
    samples: int
    time: float


def record_epoch(folder: CacheFolder, generation: int, samples: int) -> None:
    """Record an epoch that begins now. Needs the lock."""
    line = (
        json.dumps({"generation": generation, "samples": samples, "time": time.time()}).encode()
        + b"\n"
    )
    with (folder.dir / "epochs.jsonl").open("ab", buffering=0) as f:
        write_all(f, line)


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
        return Epoch(int(record["generation"]), int(record["samples"]), float(record["time"]))
    except (ValueError, KeyError, TypeError):
        return None


def find_last_uses(folder: CacheFolder) -> dict[str, float]:
    """Return when the last epoch that used each shard began, by the shard's name.

    Shards that no epoch has used are missing. Needs the lock.

    Returns:
        Seconds since 1970.
    """
    recorded = sorted(read_epochs(folder), key=lambda e: e.generation)
    latest = list(accumulate((e.time for e in reversed(recorded)), max))[::-1]
    generations = [e.generation for e in recorded]
    times = {}
    for name, generation in folder.commit_log.publication_generations().items():
        first = bisect_left(generations, generation)
        if first < len(latest):
            times[name] = latest[first]
    return times
