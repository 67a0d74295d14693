"""Which generation of the cache each epoch trains on: the record of it, and the ranks' agreement.

epochs.jsonl records when each epoch began, and with which generation. Eviction derives from it if
an epoch has used a shard, and when last. In a run of several ranks, the first rank that begins an
epoch chooses its generation; the others follow.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.disk import write_all
from gpupipe.runtime.files import write_atomically

_ENVIRONMENT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_MAX_CHOICES = 64


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


class TrainingRun:
    """One rank's part in the agreement between the ranks of a run.

    Choices hold as long as any rank of the run has a loader open, so no later run finds them.
    Loaders belong to the same run if `identity` and the launcher's environment variables are equal.

    Args:
        folder: The cache.
        rank: This process's rank.
        identity: JSON values that identify the loaders of a run, such as data, seed and world size.
    """

    def __init__(self, folder: CacheFolder, rank: int, identity: list[Any]) -> None:
        key = _hash([*(os.environ.get(name) for name in _ENVIRONMENT), *identity])
        self._path = folder.dir / "runs" / f"{key}.json"
        with folder.lock():
            folder.remove_leftovers()
            self._remove_dead_runs()
            self._member = folder.create_claim("runs", f"{key}-{rank}-{uuid.uuid4().hex[:8]}", {})

    def _remove_dead_runs(self) -> None:
        names = os.listdir(self._path.parent)
        living = {name.partition("-")[0] for name in names if "-" in name}
        for name in names:
            if "-" not in name and name.partition(".")[0] not in living:
                (self._path.parent / name).unlink()

    def read_choice(self, epoch: int) -> int | None:
        """Return the generation of an epoch, or None if no rank has begun it. Needs the lock."""
        return self._choices().get(str(epoch))

    def record_choice(self, epoch: int, generation: int) -> None:
        """Record the generation of an epoch for the other ranks. Needs the lock.

        The file keeps the last 64 choices.
        """
        choices = self._choices()
        choices.pop(str(epoch), None)
        text = json.dumps(dict([*choices.items(), (str(epoch), generation)][-_MAX_CHOICES:]))
        with write_atomically(self._path) as temporary:
            temporary.write_text(text)

    def _choices(self) -> dict[str, int]:
        try:
            choices: dict[str, int] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return choices

    def leave(self) -> None:
        """End this rank's part in the run. Idempotent."""
        self._member.release()


def _hash(parts: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
