"""The files through which the processes of a cache coordinate: claims, and the commit log.

A claim is a file of JSON whose lock shows whether the process that created it still runs. The
commit log, manifest.jsonl, is an append-only file of one JSON object per line. It lists published
and evicted shards, and broken samples, whose files changed in the store after the listing.
Generation n is the state after n lines. All files of a cache are counted in whole disk blocks.
"""

import errno
import io
import json
import os
import re
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpupipe.errors import DataError
from gpupipe.runtime.file_locks import is_locked, try_lock

BLOCK = 4096
"""Bytes of a file system block: file sizes on disk are assumed to be multiples of it."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""The numbers of the errors of a disk that is full, or of a quota."""
_NAME = re.compile(r"[0-9]{8}")
_HASH = re.compile(r"[0-9a-f]{32}")
BrokenRows = dict[int, str | None]
"""Why samples are broken, by row; None for a sample that is no longer broken."""


def disk_size(size: int) -> int:
    """Return the bytes that a file of `size` bytes takes on disk."""
    return -(-size // BLOCK) * BLOCK


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file.

    Without a buffer, a full disk raises OSError here, and not when the file is closed.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


class Claim:
    """A JSON file that stays locked until the process that created it releases it or ends.

    The caller must hold the cache's lock to create a claim, or to check whether one is abandoned.
    So no process sees a claim that is created but not locked yet.

    Args:
        path: The new file.
        content: The content of the file, which must be JSON.

    Raises:
        OSError: The file exists already or cannot be written.
    """

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self._size = path, 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self._release = weakref.finalize(self, _release, self._file, path, os.getpid())
        try:
            if not try_lock(self._file):
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
            self.write(content)
        except BaseException:
            self.release()
            raise

    def write(self, content: dict[str, Any]) -> None:
        """Replace the content in place and in whole disk blocks.

        If the content needs no more blocks than before, this works even on a full disk.

        Raises:
            OSError: The disk is full, or the write fails.
        """
        text = json.dumps(content).encode()
        self._size = max(self._size, disk_size(len(text)))
        if self._release.alive and os.pwrite(self._file, text.ljust(self._size), 0) < self._size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def release(self) -> None:
        """Remove the file and its lock. Idempotent."""
        self._release()


def _release(file: int, path: Path, owner: int) -> None:
    """Remove a claim's file and close it; in a process other than `owner`, only close it."""
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
    os.close(file)


def is_abandoned(path: Path) -> bool:
    """Return whether the process that created the claim at `path` has ended."""
    return not is_locked(path)


@dataclass(frozen=True)
class CachedShard:
    """A published shard.

    Attributes:
        name: Eight digits: the name of its files without the suffix.
        samples: Number of samples.
        bytes: Size of its tar file in bytes.
        hash: 128-bit BLAKE2b of its tar file, in hexadecimal.
        table_bytes: Size of its table's file in bytes.
        table_hash: 128-bit BLAKE2b of its table's file, in hexadecimal.
        time: When it was published, in seconds since 1970.
        unfetched: Bytes of its file in the store that no option needs, and that were not fetched.
    """

    name: str
    samples: int
    bytes: int
    hash: str
    table_bytes: int
    table_hash: str
    time: float
    unfetched: int = 0


class CommitLog:
    """Reads the log at `path`, and appends lines to it.

    Call `publish`, `evict` and `mark_broken` while holding the cache's lock. A killed process may
    leave an incomplete last line. Readers ignore this line, and the next writer removes it.

    Attributes:
        path: The file.
        published: Every shard that was ever published, by name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_bytes = 0
        self._records: list[CachedShard | list[str] | BrokenRows] = []
        self._live: dict[str, CachedShard] = {}
        self.published: dict[str, CachedShard] = {}

    @property
    def generation(self) -> int:
        """The newest generation that was read: the number of lines read so far."""
        return len(self._records)

    def refresh(self) -> None:
        """Read the lines that were appended since the last call.

        Raises:
            DataError: A line is not a valid record.
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
            record = _parse_record(json.loads(line), self.generation + 1)
        except (ValueError, TypeError, KeyError) as e:
            where = f"{self.path}:{self.generation + 1}"
            raise DataError(
                f"{where}: not a line of a cache's manifest ({e}): delete the cache's "
                "folder, and it is filled again"
            ) from e
        _apply(record, self._live)
        if isinstance(record, CachedShard):
            self.published[record.name] = record
        self._records.append(record)

    def live_shards(self, generation: int | None = None, since: int = 0) -> dict[str, CachedShard]:
        """Return the shards that the cache has in a generation, in the order of publication.

        Args:
            generation: The state after this many lines of the log; by default, after all lines.
            since: Leave out the shards that the log's first `since` lines published.

        Returns:
            Maps the name of each shard to the shard.
        """
        if not since and generation in (None, self.generation):
            return dict(self._live)
        shards: dict[str, CachedShard] = {}
        for record in self._records[since:generation]:
            _apply(record, shards)
        return shards

    def broken_rows(self, generation: int | None = None, since: int = 0) -> dict[int, str]:
        """Return the samples that are broken in a generation, and why.

        Args:
            generation: The state after this many lines of the log; by default, after all lines.
            since: Leave out the samples of the log's first `since` lines.

        Returns:
            Maps the row of each broken sample to the reason.
        """
        broken: BrokenRows = {}
        for record in self._records[since:generation]:
            if isinstance(record, dict):
                broken |= record
        return {row: why for row, why in broken.items() if why is not None}

    def list_published(self, since: int = 0) -> list[CachedShard]:
        """Return the shards that were published after the first `since` lines, in this order.

        A shard that was evicted and published again is there twice.
        """
        records = self._records[since:]
        return [record for record in records if isinstance(record, CachedShard)]

    def publication_generations(self) -> dict[str, int]:
        """Return a dict from the name of each shard to the generation that published it."""
        return {
            record.name: n
            for n, record in enumerate(self._records, 1)
            if isinstance(record, CachedShard)
        }

    def publish(self, shard: CachedShard) -> None:
        """Append the line that publishes a shard. Call it while holding the cache's lock."""
        self._append({"publish": asdict(shard)})

    def evict(self, names: list[str], why: str) -> None:
        """Append the line that evicts shards. Call it while holding the cache's lock."""
        self._append({"evict": names, "why": why})

    def mark_broken(self, rows: BrokenRows) -> None:
        """Append the line that says which samples are broken, and why.

        None in place of a reason marks a sample as no longer broken. Call it while holding the
        cache's lock.
        """
        self._append({"broken": rows})

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


def _apply(record: CachedShard | list[str] | BrokenRows, live: dict[str, CachedShard]) -> None:
    if isinstance(record, CachedShard):
        live[record.name] = record
    elif isinstance(record, list):
        for name in record:
            live.pop(name, None)


def _parse_record(record: Any, generation: int) -> CachedShard | list[str] | BrokenRows:
    """Return the content of a line: a published shard, names of evicted shards, or broken samples.

    Raises ValueError, TypeError or KeyError if the line is malformed.
    """
    if record["generation"] != generation:
        raise ValueError(f"generation {record['generation']} in place of {generation}")
    if "publish" in record:
        shard = CachedShard(**record["publish"])
        numbers = (shard.samples, shard.bytes, shard.table_bytes, shard.unfetched)
        if not all(type(n) is int and n >= 0 for n in numbers) or not all(
            _HASH.fullmatch(h) for h in (shard.hash, shard.table_hash)
        ):
            raise ValueError("sizes or hashes that are none")
        _check_name(shard.name)
        return shard
    if "broken" in record:
        return {int(row): why for row, why in record["broken"].items()}
    return [_check_name(name) for name in record["evict"]]


def _check_name(name: str) -> str:
    """Return a shard's name if it has eight digits, else raise ValueError.

    Names become parts of paths, so another name could lead outside the cache folder.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no shard's name")
    return name
