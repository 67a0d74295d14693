"""Files of named arrays behind a JSON header, which are written atomically and memory-mapped.

The layout is gpupipe's own: opening an index must not read its arrays, and an index must be
replaced in one step. NumPy cannot memory-map the arrays of an .npz, Arrow is not among gpupipe's
requirements, and several .npy files cannot be replaced together. For single arrays, use .npy.

The file holds a magic line, the length of the header (8 bytes, little-endian), the header, and the
arrays. Each array begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.runtime.atomic_write import write_atomically

_MAGIC = b"gpupipe-index-3\n"
_LENGTH_BYTES = 8
_ALIGNMENT = 64
_KINDS = "iufb"

Arrays = dict[str, NDArray[Any]]


def write_table(path: Path, header: dict[str, Any], arrays: Arrays) -> None:
    """Write a table file atomically. Missing folders are created.

    Args:
        path: The file.
        header: JSON values. The key "arrays" is reserved.
        arrays: Arrays of numbers or booleans, by name.

    Raises:
        OSError: The file cannot be written.
    """
    layout = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
    text = json.dumps(header | {"arrays": layout}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as temporary, temporary.open("xb") as f:
        f.write(_MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for array in arrays.values():
            f.write(b"\0" * (-f.tell() % _ALIGNMENT))
            f.write(np.ascontiguousarray(array).data)


def open_table(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return the header of a table file, and its arrays, memory-mapped.

    Raises:
        OSError: The file cannot be read.
        ValueError, TypeError, KeyError, AttributeError: It is not as `write_table` wrote it: of
            another version, truncated or damaged.
    """
    size = path.stat().st_size
    header, offset = _read_header(path, size)
    arrays: Arrays = {}
    for name, (dtype, shape) in header.pop("arrays").items():
        offset += -offset % _ALIGNMENT
        arrays[name] = _map_array(path, np.dtype(dtype), tuple(shape), offset, size)
        offset += arrays[name].nbytes
    if size != offset:
        raise ValueError("cut off, or longer than its arrays")
    return header, arrays


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of a file of `size` bytes, and the offset at which it ends.

    Raises ValueError or TypeError if the file is no table.
    """
    with path.open("rb") as f:
        if f.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("another format, or another version")
        length = int.from_bytes(f.read(_LENGTH_BYTES), "little")
        if length > size:
            raise ValueError("cut off")
        header = json.loads(f.read(length))
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
