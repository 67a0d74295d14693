"""The append-only log of published and evicted shards: manifest.jsonl, one JSON object a line.

Generation n is the state after n lines.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpupipe.cache.disk import write_all
from gpupipe.errors import DataError

_NAME = re.compile(r"[0-9]{8}")
_HASH = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class CachedShard:
    """A published shard.

    Attributes:
        name: Eight digits, the stem of its files.
        samples: Number of samples.
        bytes: Size of its tar file.
        hash: 128-bit BLAKE2b of its tar file, in hexadecimal.
        table_bytes: Size of its table's file.
        table_hash: 128-bit BLAKE2b of its table's file, in hexadecimal.
        time: When it was published, in seconds since 1970.
    """

    name: str
    samples: int
    bytes: int
    hash: str
    table_bytes: int
    table_hash: str
    time: float


class Manifest:
    """Reader of the log at `path`, and its writer for the holder of the cache's lock.

    A killed process may leave an incomplete last line. Readers ignore it, and the next writer cuts
    it off.

    Attributes:
        path: The file.
        known: Every shard that was ever published, by name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_bytes = 0
        self._steps: list[CachedShard | list[str]] = []
        self._alive: dict[str, CachedShard] = {}
        self.known: dict[str, CachedShard] = {}

    @property
    def generation(self) -> int:
        """The newest generation that was read."""
        return len(self._steps)

    def refresh(self) -> None:
        """Read new lines.

        Raises:
            DataError: A line does not belong to a manifest.
        """
        try:
            with self.path.open("rb") as f:
                f.seek(self._read_bytes)
                new = f.read()
        except FileNotFoundError:
            return
        for line in new[: new.rfind(b"\n") + 1].splitlines(keepends=True):
            self._apply_line(line)
            self._read_bytes += len(line)

    def _apply_line(self, line: bytes) -> None:
        try:
            step = _parse_record(json.loads(line), self.generation + 1)
        except (ValueError, TypeError, KeyError) as e:
            where = f"{self.path}:{self.generation + 1}"
            raise DataError(
                f"{where}: not a line of a cache's manifest ({e}): delete the cache's "
                "folder, and it is filled again"
            ) from e
        _apply(step, self._alive)
        if isinstance(step, CachedShard):
            self.known[step.name] = step
        self._steps.append(step)

    def alive(self, generation: int | None = None) -> dict[str, CachedShard]:
        """Return the shards of a generation by name, in the order of publication.

        Args:
            generation: By default the newest that was read.
        """
        if generation is None or generation == self.generation:
            return dict(self._alive)
        shards: dict[str, CachedShard] = {}
        for step in self._steps[:generation]:
            _apply(step, shards)
        return shards

    def published_at(self) -> dict[str, int]:
        """Return the generation in which each shard was published."""
        return {
            step.name: n for n, step in enumerate(self._steps, 1) if isinstance(step, CachedShard)
        }

    def publish(self, shard: CachedShard) -> None:
        """Append a published shard. Needs the lock."""
        self._append({"publish": asdict(shard)})

    def evict(self, names: list[str], why: str) -> None:
        """Append an eviction: the next generation is without these shards. Needs the lock."""
        self._append({"evict": names, "why": why})

    def _append(self, record: dict[str, Any]) -> None:
        self.refresh()
        line = json.dumps({"generation": self.generation + 1} | record).encode() + b"\n"
        with self.path.open("ab", buffering=0) as f:
            f.truncate(self._read_bytes)
            try:
                write_all(f, line)
                os.fsync(f.fileno())
            except OSError:
                f.truncate(self._read_bytes)
                raise
        self.refresh()


def _apply(step: CachedShard | list[str], alive: dict[str, CachedShard]) -> None:
    if isinstance(step, CachedShard):
        alive[step.name] = step
        return
    for name in step:
        alive.pop(name, None)


def _parse_record(record: Any, generation: int) -> CachedShard | list[str]:
    """Return a published shard or the names of evicted ones.

    Raises ValueError, TypeError or KeyError if the line is malformed.
    """
    if record["generation"] != generation:
        raise ValueError(f"generation {record['generation']} in place of {generation}")
    if "publish" in record:
        shard = CachedShard(**record["publish"])
        numbers = (shard.samples, shard.bytes, shard.table_bytes)
        if not all(type(n) is int and n >= 0 for n in numbers) or not all(
            _HASH.fullmatch(h) for h in (shard.hash, shard.table_hash)
        ):
            raise ValueError("sizes or hashes that are none")
        _check_name(shard.name)
        return shard
    return [_check_name(name) for name in record["evict"]]


def _check_name(name: str) -> str:
    """Return the name if it is a shard's; names become parts of paths.

    Raises ValueError for any other name, which could lead outside the folder.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no shard's name")
    return name
