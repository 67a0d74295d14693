"""Which epochs began, with which generation: what says of a shard whether it was trained on, and
when last.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gpupipe.cache.disk import write_all
from gpupipe.cache.folder import CacheFolder


@dataclass(frozen=True)
class Epoch:
    """One that began. time: s since 1970."""

    generation: int
    samples: int
    time: float


def add(folder: CacheFolder, generation: int, samples: int) -> None:
    """Needs the lock."""
    line = (
        json.dumps({"generation": generation, "samples": samples, "time": time.time()}).encode()
        + b"\n"
    )
    with (folder.dir / "epochs.jsonl").open("ab", buffering=0) as f:
        write_all(f, line)


def read(folder: CacheFolder) -> list[Epoch]:
    """All of them; a line that a process did not live to finish is left out."""
    try:
        lines = (folder.dir / "epochs.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [e for e in map(_parsed, lines) if e is not None]


def _parsed(line: bytes) -> Epoch | None:
    try:
        found: Any = json.loads(line)
        return Epoch(int(found["generation"]), int(found["samples"]), float(found["time"]))
    except (ValueError, KeyError, TypeError):
        return None


def last_used(folder: CacheFolder) -> dict[str, float]:
    """When the last epoch began that had each shard; shards of which none had are left out.

    Needs the lock.
    """
    began = sorted(read(folder), key=lambda e: e.generation)
    latest = list(accumulate((e.time for e in reversed(began)), max))[::-1]
    generations = [e.generation for e in began]
    found = {}
    for name, generation in folder.manifest.published_at().items():
        place = bisect_left(generations, generation)
        if place < len(latest):
            found[name] = latest[place]
    return found
