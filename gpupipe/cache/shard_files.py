"""Shards: tar files as WebDataset reads them, whose content follows from the samples that they
hold, and the tables of what is where in them.

A sample of row 7 is the members 000000007.jpg, its bytes; 000000007.cls, its label's number; and
000000007.json, all that is known of it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.disk import write_all
from gpupipe.errors import DataError

Table = NDArray[np.int64]
"""(3, samples): row of the data set, offset and length of its image in the shard."""
END = 2 * tarfile.BLOCKSIZE
_BLOCKS_BESIDE = 5
"""Of a sample, beside its image: three headers, the label, and the first of the JSON."""
_CHUNK = 1 << 22
_TABLE_HEADER = 128


@dataclass(frozen=True)
class ShardSample:
    """A sample as it goes into a shard.

    row: of the data set; name: under its url; about: what further is known of it.
    """

    row: int
    name: str
    label: int
    about: dict[str, Any] = field(default_factory=dict)

    def members(self, size: int) -> list[tuple[tarfile.TarInfo, bytes | None]]:
        """The headers of its members, and what is in them; None for the image itself, of `size`
        bytes.
        """
        text = json.dumps({"path": self.name, "label": self.label} | self.about).encode()
        parts: list[tuple[str, bytes | None, int]] = [(_ending(self.name), None, size)]
        parts += [("cls", label := str(self.label).encode(), len(label)), ("json", text, len(text))]
        return [
            (_header(f"{self.row:09}.{ending}", length), content)
            for ending, content, length in parts
        ]

    def cost(self, size: int) -> int:
        """Bytes that it takes in a shard where its image has `size`."""
        return sum(tarfile.BLOCKSIZE + _padded(info.size) for info, _ in self.members(size))


def _ending(name: str) -> str:
    ending = name.rpartition("/")[2].rpartition(".")[2].lower()
    return (
        ending
        if ending.isalnum()
        and ending.isascii()
        and len(ending) <= 8
        and ending not in ("cls", "json")
        else "bin"
    )


def _header(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def least_bytes(sizes: NDArray[np.int64]) -> int:
    """What samples of these sizes (-1: not known) take in shards, at the least."""
    blocks = -(-np.maximum(sizes, 0) // tarfile.BLOCKSIZE)
    return int((blocks + _BLOCKS_BESIDE).sum()) * tarfile.BLOCKSIZE


class Writer:
    """Writes a shard to a file of its own; `hash` and `table` tell of it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._digest = hashlib.blake2b(digest_size=16)
        self._rows: list[tuple[int, int, int]] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def size_with(self, cost: int) -> int:
        """Bytes of the whole shard if a sample of this cost were the last."""
        return self.bytes + cost + END

    def add(self, sample: ShardSample, image: bytes) -> None:
        for info, content in sample.members(len(image)):
            self._write(info.tobuf(tarfile.USTAR_FORMAT))
            if content is None:
                self._rows.append((sample.row, self.bytes, len(image)))
            part = image if content is None else content
            self._write(part + b"\0" * (_padded(len(part)) - len(part)))

    def finish(self) -> None:
        """Write the end, and see to it that all is on the disk."""
        self._write(b"\0" * END)
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        """Give up."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        write_all(self._file, data)
        self._digest.update(data)
        self.bytes += len(data)

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()

    @property
    def table(self) -> Table:
        return np.array(self._rows, np.int64).reshape(-1, 3).T.copy()


def table_size(samples: int) -> int:
    """Bytes of a table's file."""
    return _TABLE_HEADER + 24 * samples


def save_table(table: Table, path: Path) -> str:
    """Write it. Returns its hash."""
    buffer = io.BytesIO()
    np.save(buffer, table, allow_pickle=False)
    with path.open("xb", buffering=0) as f:
        write_all(f, buffer.getvalue())
        os.fsync(f.fileno())
    return _hash(buffer.getvalue())


def open_table(path: Path, expected: str) -> Table:
    """The table that `save_table` wrote. Raises DataError where it is another or none."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise DataError(
            f"{path}: cannot be read: {e.strerror or e}: run 'gpupipe cache verify CONFIG', "
            "which mends the cache"
        ) from e
    if _hash(data) != expected:
        raise DataError(
            f"{path}: damaged: its checksum is another than when it was written: run "
            "'gpupipe cache verify CONFIG', which mends the cache"
        )
    try:
        found: Table = np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError as e:
        raise DataError(
            f"{path}: damaged: {e}: run 'gpupipe cache verify CONFIG', which mends the cache"
        ) from e
    return found


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def hash_of(path: Path) -> str:
    """The blake2b of a file, 128 bits. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def scanned(path: Path, rows: int) -> Table:
    """The table of a shard from its tar alone, of a data set of `rows`.

    Raises DataError where a member is none that gpupipe writes.
    """
    try:
        with path.open("rb") as f, tarfile.open(fileobj=f, mode="r:") as tar:
            members = [(_row(path, m, rows), m) for m in tar]
    except (tarfile.TarError, OSError, EOFError) as e:
        raise DataError(f"{path}: not a whole tar file: {e}") from e
    found = [
        (row, m.offset_data, m.size) for row, m in members if not m.name.endswith((".cls", ".json"))
    ]
    return np.array(found, np.int64).reshape(-1, 3).T.copy()


def _row(path: Path, member: tarfile.TarInfo, rows: int) -> int:
    number, dot, ending = member.name.partition(".")
    if (
        not (
            member.isreg() and dot and number.isdecimal() and number.isascii() and ending.isalnum()
        )
        or int(number) >= rows
    ):
        raise DataError(
            f"{path}: the member {member.name[:100]!r} is none that gpupipe writes: a plain "
            "file, called by the number of a row"
        )
    return int(number)
