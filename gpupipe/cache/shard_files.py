"""Writes and reads shards (tar files in WebDataset's format), and tables that locate each image.

The samples of a shard determine every byte of it. The sample of row 7 has the members
000000007.jpg, its image; 000000007.cls, its label's number; and 000000007.json, its path, label and
further columns.
"""

import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.shared_files import write_all
from gpupipe.errors import DataError

Table = NDArray[np.int64]
"""The table of a shard, int64 (4, samples). For each sample, it has the row of the data set, the
offset and the length of the image in the shard, in bytes, and the CRC-32 of the image.
"""
END = 2 * tarfile.BLOCKSIZE
_BLOCKS_BESIDE = 3
"""Minimum number of tar blocks of a sample besides its image: two headers, and JSON."""
_SUFFIX = re.compile("[0-9a-z]{1,8}")
_MEMBER = re.compile("([0-9]{1,18})[.][0-9a-z]+")
_TABLE_HEADER = 128
_TABLE_ROWS = 4


@dataclass(frozen=True)
class ShardSample:
    """A sample to write to a shard.

    Attributes:
        row: The sample's row of the data set.
        name: Path of its file under the data set's url.
        label: Index of its class; -1 if it has none. Then there is no label in the shard.
        metadata: Maps the name of each further column to its value, for the .json member.
    """

    row: int
    name: str
    label: int
    metadata: dict[str, Any] = field(default_factory=dict)

    def members(self, size: int) -> list[tuple[tarfile.TarInfo, bytes | None]]:
        """Return the headers and the contents of the sample's members in the tar file.

        Args:
            size: Bytes of the image.

        Returns:
            Three pairs (header, content), for image, label and JSON. The image's content is None.
            There is no pair for a label of -1.
        """
        has_label = self.label >= 0
        label = {"label": self.label} if has_label else {}
        text = json.dumps({"path": self.name} | label | self.metadata).encode()
        suffix = self.name.rpartition("/")[2].rpartition(".")[2].lower()
        if not _SUFFIX.fullmatch(suffix) or suffix in ("cls", "json"):
            suffix = "bin"
        parts: list[tuple[str, bytes | None, int]] = [(suffix, None, size)]
        if has_label:
            number = str(self.label).encode()
            parts.append(("cls", number, len(number)))
        parts.append(("json", text, len(text)))
        return [
            (_tar_header(f"{self.row:09}.{ending}", length), content)
            for ending, content, length in parts
        ]

    def stored_size(self, size: int) -> int:
        """Return the bytes that the sample takes in a shard if its image has `size` bytes."""
        return sum(tarfile.BLOCKSIZE + _pad_size(info.size) for info, _ in self.members(size))


def _tar_header(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _pad_size(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def min_shard_bytes(sizes: NDArray[np.int64]) -> int:
    """Return the minimum number of bytes that samples take in shards.

    Args:
        sizes: Bytes of each sample's image, int64 (N,); -1 if unknown.
    """
    blocks = -(-np.maximum(sizes, 0) // tarfile.BLOCKSIZE)
    return int((blocks + _BLOCKS_BESIDE).sum()) * tarfile.BLOCKSIZE


class ShardWriter:
    """Writes one shard to a new file.

    Args:
        path: The new file.

    Attributes:
        bytes: Bytes written so far.
        hash: 128-bit BLAKE2b of the bytes written so far, in hexadecimal.
        table: The table of the samples written so far.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._digest = hashlib.blake2b(digest_size=16)
        self._rows: list[tuple[int, int, int, int]] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def size_with(self, stored_size: int) -> int:
        """Return the shard's final size if one sample of `stored_size` bytes is still added."""
        return self.bytes + stored_size + END

    def add(self, sample: ShardSample, image: bytes) -> None:
        """Append a sample and its image file's bytes."""
        for info, content in sample.members(len(image)):
            self._write(info.tobuf(tarfile.USTAR_FORMAT))
            if content is None:
                self._rows.append((sample.row, self.bytes, len(image), zlib.crc32(image)))
            part = image if content is None else content
            self._write(part + b"\0" * (_pad_size(len(part)) - len(part)))

    def finish(self) -> None:
        """Write the end of the tar file, sync the file to disk, and close it."""
        self._write(b"\0" * END)
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        """Close the file. Without an earlier `finish`, the shard is incomplete. Idempotent."""
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
        return np.array(self._rows, np.int64).reshape(-1, _TABLE_ROWS).T.copy()


def table_file_size(samples: int) -> int:
    """Return the bytes of the file of a table with this many samples."""
    return _TABLE_HEADER + 8 * _TABLE_ROWS * samples


def save_table(table: Table, path: Path) -> str:
    """Write a table to a new .npy file and sync it to disk.

    The commit log holds the hash of the file, so the same table must always give the same bytes.

    Args:
        table: int64 (4, samples).
        path: The new file.

    Returns:
        The 128-bit BLAKE2b of the file, in hexadecimal.
    """
    buffer = io.BytesIO()
    np.save(buffer, table, allow_pickle=False)
    with path.open("xb", buffering=0) as f:
        write_all(f, buffer.getvalue())
        os.fsync(f.fileno())
    return _hash(buffer.getvalue())


def load_table(path: Path, expected: str) -> Table:
    """Return the table that `save_table` wrote.

    Args:
        path: The file.
        expected: The hash that `save_table` returned.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        data = path.read_bytes()
        if _hash(data) != expected:
            raise ValueError("its checksum is another than when it was written")
        table: Table = np.load(io.BytesIO(data), allow_pickle=False)
    except (OSError, ValueError) as e:
        why = f"cannot be read: {e.strerror or e}" if isinstance(e, OSError) else f"damaged: {e}"
        raise DataError(
            f"{path}: {why}: run 'gpupipe cache verify CONFIG', which mends the cache"
        ) from e
    return table


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def hash_file(path: Path) -> str:
    """Return the 128-bit BLAKE2b of a file, in hexadecimal.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def scan_tar(path: Path, rows: int) -> Table:
    """Rebuild the table of a shard from its tar file alone.

    Args:
        path: The tar file.
        rows: Number of rows of the data set.

    Returns:
        The table, int64 (4, samples).

    Raises:
        DataError: The tar file is damaged, or has a member that gpupipe does not write.
    """
    try:
        with path.open("rb") as f, tarfile.open(fileobj=f, mode="r:") as tar:
            members = [(_parse_row(path, m, rows), m) for m in tar]
            images = [
                (row, m.offset_data, m.size, _compute_checksum(f, m))
                for row, m in members
                if not m.name.endswith((".cls", ".json"))
            ]
    except (tarfile.TarError, OSError, EOFError) as e:
        raise DataError(f"{path}: not a whole tar file: {e}") from e
    return np.array(images, np.int64).reshape(-1, _TABLE_ROWS).T.copy()


def _compute_checksum(file: io.BufferedReader, member: tarfile.TarInfo) -> int:
    file.seek(member.offset_data)
    return zlib.crc32(file.read(member.size))


def _parse_row(path: Path, member: tarfile.TarInfo, rows: int) -> int:
    name = _MEMBER.fullmatch(member.name)
    if not member.isreg() or name is None or int(name[1]) >= rows:
        raise DataError(
            f"{path}: the member {member.name[:100]!r} is none that gpupipe writes: a plain "
            "file, called by the number of a row"
        )
    return int(name[1])
