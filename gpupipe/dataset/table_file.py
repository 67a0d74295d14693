"""Files of named arrays behind a JSON header, which are written atomically and memory-mapped.

The layout is gpupipe's own: opening an index must not read its arrays, and an index must be
replaced in one step. NumPy cannot memory-map the arrays of an .npz, Arrow is not among gpupipe's
requirements, and several .npy files cannot be replaced together. For single arrays, use .npy.

The file holds a magic line, the length of the header and its CRC-32 (8 bytes each, little-endian),
the header, and the arrays. Each array begins at a multiple of 64 bytes. The header holds a checksum
of each array. Opening a file verifies all of them, which takes milliseconds for a million rows.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.runtime.atomic_write import write_atomically
from gpupipe.runtime.regular_file import open_regular

_MAGIC = b"gpupipe-index-4\n"
_NUMBER_BYTES = 8
_ALIGNMENT = 64
_BLOCK_BYTES = 4096
_KINDS = "iufb"

Arrays = dict[str, NDArray[Any]]


class OtherVersion(ValueError):
    """A table file that another version of gpupipe wrote."""


def write_table(path: Path, header: dict[str, Any], arrays: Arrays) -> None:
    """Write a table file atomically. Missing folders are created.

    Args:
        path: The file.
        header: JSON values. The key "arrays" is reserved.
        arrays: Arrays of numbers or booleans, by name.

    Raises:
        OSError: The file cannot be written.
    """
    layout = {
        name: [array.dtype.str, array.shape, compute_checksum(array)]
        for name, array in arrays.items()
    }
    text = json.dumps(header | {"arrays": layout}).encode()
    numbers = (n.to_bytes(_NUMBER_BYTES, "little") for n in (len(text), zlib.crc32(text)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as temporary, temporary.open("xb") as f:
        f.write(_MAGIC + b"".join(numbers) + text)
        for array in arrays.values():
            f.write(b"\0" * (-f.tell() % _ALIGNMENT))
            f.write(np.ascontiguousarray(array).data)


def open_table(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return the header of a table file, and its arrays, memory-mapped.

    Raises:
        OSError: The file cannot be read.
        OtherVersion: Another version of gpupipe wrote it.
        ValueError, TypeError, KeyError, AttributeError: It is truncated or damaged.
    """
    size = path.stat().st_size
    header, offset = _read_header(path, size)
    arrays: Arrays = {}
    for name, (dtype, shape, checksum) in header.pop("arrays").items():
        offset += -offset % _ALIGNMENT
        arrays[name] = _map_array(path, np.dtype(dtype), tuple(shape), offset, size)
        offset += arrays[name].nbytes
        if offset > size or compute_checksum(arrays[name]) != checksum:
            raise ValueError(f"the checksum of '{name}' differs")
    if size != offset:
        raise ValueError("cut off, or longer than its arrays")
    return header, arrays


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of a file of `size` bytes, and the offset at which it ends.

    Raises ValueError or TypeError if the file is no table.
    """
    with open_regular(path) as f:
        if f.read(len(_MAGIC)) != _MAGIC:
            raise OtherVersion("another format, or another version")
        length, checksum = (int.from_bytes(f.read(_NUMBER_BYTES), "little") for _ in range(2))
        if length > size:
            raise ValueError("cut off")
        text = f.read(length)
        if zlib.crc32(text) != checksum:
            raise ValueError("the checksum of the header differs")
        header = json.loads(text)
        if not isinstance(header, dict):
            raise TypeError("not a header")
        return header, f.tell()


def _map_array(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, size: int
) -> NDArray[Any]:
    """Memory-map an array of the file. Raises ValueError or TypeError if it cannot be there."""
    if dtype.kind not in _KINDS or not all(type(n) is int and 0 <= n <= size for n in shape):
        raise ValueError("no array")
    if not all(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)  # faster to index


def compute_checksum(array: NDArray[Any]) -> int:
    """Return the CRC-32 of an array's sums, one for each 4 KiB, and of the bytes after the last.

    A sum of 64-bit words changes with every bit of its block, and takes a tenth of the time that a
    CRC of the words would take.
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    end = len(data) - len(data) % _BLOCK_BYTES
    sums = data[:end].view(np.uint64).reshape(-1, _BLOCK_BYTES // 8).sum(1, dtype=np.uint64)
    return zlib.crc32(data[end:].data, zlib.crc32(sums.data))
