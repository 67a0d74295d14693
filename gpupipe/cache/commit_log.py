"""What was published and evicted, in order: an append-only file of JSON lines.

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
    """A published shard. bytes, table_bytes: sizes of its tar and its table; the hashes are
    blake2b, 128 bits; time: when, in s since 1970.
    """

    name: str
    samples: int
    bytes: int
    hash: str
    table_bytes: int
    table_hash: str
    time: float


class Manifest:
    """A reader of the file at `path`, and its writer for who holds the cache's lock.

    A line that was not written to its end, by a process that was killed, was never there: readers
    ignore it, the next writer cuts it off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._steps: list[CachedShard | list[str]] = []
        self._alive: dict[str, CachedShard] = {}
        self.known: dict[str, CachedShard] = {}
        """Every shard that was ever published."""

    @property
    def generation(self) -> int:
        """The newest that was read."""
        return len(self._steps)

    def refresh(self) -> None:
        """Read what is new. Raises DataError where a line is none of the manifest's."""
        try:
            with self.path.open("rb") as f:
                f.seek(self._read)
                new = f.read()
        except FileNotFoundError:
            return
        for line in new[: new.rfind(b"\n") + 1].splitlines(keepends=True):
            self._take(line)
            self._read += len(line)

    def _take(self, line: bytes) -> None:
        try:
            step = _parsed(json.loads(line), self.generation + 1)
        except (ValueError, TypeError, KeyError) as e:
            where = f"{self.path}:{self.generation + 1}"
            raise DataError(
                f"{where}: not a line of a cache's manifest ({e}): delete the cache's "
                "folder, and it is filled anew"
            ) from e
        _apply(step, self._alive)
        if isinstance(step, CachedShard):
            self.known[step.name] = step
        self._steps.append(step)

    def alive(self, generation: int | None = None) -> dict[str, CachedShard]:
        """The shards of a generation by name, by default of the newest that was read, in the order
        in which they were published.
        """
        if generation is None or generation == self.generation:
            return dict(self._alive)
        found: dict[str, CachedShard] = {}
        for step in self._steps[:generation]:
            _apply(step, found)
        return found

    def published_at(self) -> dict[str, int]:
        """Of every shard the generation that it came with."""
        return {
            step.name: n for n, step in enumerate(self._steps, 1) if isinstance(step, CachedShard)
        }

    def publish(self, shard: CachedShard) -> None:
        """Under the cache's lock."""
        self._append({"publish": asdict(shard)})

    def evict(self, names: list[str], why: str) -> None:
        """Under the cache's lock: the newest generation is without them."""
        self._append({"evict": names, "why": why})

    def _append(self, record: dict[str, Any]) -> None:
        self.refresh()
        line = json.dumps({"generation": self.generation + 1} | record).encode() + b"\n"
        with self.path.open("ab", buffering=0) as f:
            f.truncate(self._read)
            try:
                write_all(f, line)
                os.fsync(f.fileno())
            except OSError:
                f.truncate(self._read)
                raise
        self.refresh()


def _apply(step: CachedShard | list[str], alive: dict[str, CachedShard]) -> None:
    if isinstance(step, CachedShard):
        alive[step.name] = step
        return
    for name in step:
        alive.pop(name, None)


def _parsed(record: Any, generation: int) -> CachedShard | list[str]:
    """A line as what it says. Raises ValueError, TypeError, KeyError."""
    if record["generation"] != generation:
        raise ValueError(f"generation {record['generation']} in place of {generation}")
    if "publish" in record:
        shard = CachedShard(**record["publish"])
        numbers = (shard.samples, shard.bytes, shard.table_bytes)
        if not all(type(n) is int and n >= 0 for n in numbers) or not all(
            _HASH.fullmatch(h) for h in (shard.hash, shard.table_hash)
        ):
            raise ValueError("sizes or hashes that are none")
        _checked(shard.name)
        return shard
    return [_checked(name) for name in record["evict"]]


def _checked(name: str) -> str:
    """A shard's name, which becomes part of paths.

    Raises ValueError where it could lead elsewhere.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no shard's name")
    return name
