"""An index as a file, whole or not at all, from which it is memory-mapped again."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.index import ArrayLayout, Column, FileColumn, Index, SpanColumn, StringArray

_MAGIC = b"gpupipe-index-2\n"
_LENGTH_BYTES = 8
_ALIGNMENT = 64
_RACY_SECONDS = 2.0
"""What changed this shortly before it was read may change again within the file system's clock
tick.
"""
_KINDS = "iufb"

Arrays = dict[str, NDArray[Any]]


def save(index: Index, path: Path) -> None:
    """Write the index as one file, whole or not at all."""
    arrays = _texts("names", index.names) | {"labels": index.labels}
    columns = {
        name: _described(name, column, index, arrays) for name, column in index.columns.items()
    }
    arrays |= {f"values.{name}": array for name, array in index.values.items()}
    header: dict[str, Any] = {
        "root": index.root,
        "classes": index.classes,
        "fingerprint": index.fingerprint,
        "extra": index.extra,
    }
    header |= {
        "columns": columns,
        "arrays": {name: [a.dtype.str, a.shape] for name, a in arrays.items()},
    }
    text = json.dumps(header).encode()
    write_whole(
        path,
        [
            _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + text,
            *_aligned(len(_MAGIC) + _LENGTH_BYTES + len(text), arrays),
        ],
    )


def _aligned(place: int, arrays: Arrays) -> Iterator[Any]:
    """The arrays, each behind the bytes that bring it from `place`, where the file ends before
    them, to where it may begin.
    """
    for array in arrays.values():
        yield b"\0" * (-place % _ALIGNMENT)
        yield np.ascontiguousarray(array)
        place += -place % _ALIGNMENT + array.nbytes


def write_whole(path: Path, pieces: Iterable[Any]) -> None:
    """Write bytes, or contiguous arrays, behind one another into a file, which is then there whole
    or not at all. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with making.open("wb") as f:
            f.writelines(pieces)
        making.replace(path)
    finally:
        making.unlink(missing_ok=True)


def _texts(key: str, texts: StringArray) -> Arrays:
    return {f"{key}.letters": texts.letters, f"{key}.ends": texts.ends}


def _described(name: str, column: Column, index: Index, arrays: Arrays) -> dict[str, Any]:
    """A column as the header tells it; its arrays are added to `arrays`."""
    key = f"columns.{name}"
    if isinstance(column, FileColumn):
        if column.paths is not index.names:
            arrays |= _texts(f"{key}.paths", column.paths)
        return {"kind": "files", "root": column.root, "named": column.paths is index.names}
    arrays |= _texts(f"{key}.files", column.files) | {
        f"{key}.{what}": getattr(column, what) for what in ("file", "offset", "length")
    }
    described: dict[str, Any] = {"kind": "spans", "root": column.root, "array": None}
    if column.array is not None:
        described["array"] = [column.array.dtype, column.array.shape]
        if column.array.shapes is not None:
            arrays[f"{key}.shapes"] = column.array.shapes
    return described


def keep(index: Index, path: Path, newest: int, started: float) -> None:
    """Save an index for the next time, unless what it was read from may have changed meanwhile
    without a trace: where `newest`, the last change of it in ns, lies too near to `started`, the
    time before it was read. Where the cache cannot be written, the next time reads again, no more.
    """
    if newest < (started - _RACY_SECONDS) * 1e9:
        with contextlib.suppress(OSError):
            save(index, path)


def file_state(file: Path) -> list[int]:
    """What changes where a file does: mtime and ctime in ns, bytes, inode.

    To be found before it is read: what changes after is read anew.
    """
    status = os.stat(file)
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]


def open_saved(path: Path) -> Index | None:
    """The index in a file, memory-mapped; None where there is none, or it is of another version,
    cut off or otherwise not what `save` wrote.
    """
    try:
        size = path.stat().st_size
        header, place = _header(path, size)
        arrays: Arrays = {}
        for name, (dtype, shape) in header["arrays"].items():
            place += -place % _ALIGNMENT
            arrays[name] = _mapped(path, np.dtype(dtype), tuple(shape), place, size)
            place += arrays[name].nbytes
        index = _built(header, arrays)
        return index if size == place and _holds_together(index) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """The header of an index file of `size` bytes, and where it ends.

    Raises ValueError or TypeError where it is none.
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


def _mapped(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], place: int, size: int
) -> NDArray[Any]:
    """An array of the file. Raises ValueError, TypeError where it cannot be there."""
    if dtype.kind not in _KINDS or not all(type(n) is int and 0 <= n <= size for n in shape):
        raise ValueError("no array")
    if not all(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", place, shape)


def _built(header: dict[str, Any], arrays: Arrays) -> Index:
    """Raises KeyError, TypeError, ValueError where something lacks."""
    names = _read_texts("names", arrays)
    columns = {
        name: _column(f"columns.{name}", told, names, arrays)
        for name, told in header["columns"].items()
    }
    values = {
        name.removeprefix("values."): array
        for name, array in arrays.items()
        if name.startswith("values.")
    }
    return Index(
        header["root"],
        names,
        _typed(arrays["labels"], np.int64),
        header["classes"],
        columns,
        header["fingerprint"],
        values,
        extra=header["extra"],
    )


def _column(key: str, told: dict[str, Any], names: StringArray, arrays: Arrays) -> Column:
    if not isinstance(told["root"], str):
        raise TypeError("no path")
    if told["kind"] == "files":
        return FileColumn(
            told["root"], names if told["named"] else _read_texts(f"{key}.paths", arrays)
        )
    file, offset, length = (
        _typed(arrays[f"{key}.{what}"], dtype)
        for what, dtype in (("file", np.int32), ("offset", np.int64), ("length", np.int64))
    )
    array = None
    if told["array"] is not None:
        dtype, shape = told["array"]
        shapes = _typed(arrays[f"{key}.shapes"], np.int64, 2) if shape is None else None
        array = ArrayLayout(
            np.dtype(dtype).name, None if shape is None else tuple(map(int, shape)), shapes
        )
    return SpanColumn(
        told["root"], _read_texts(f"{key}.files", arrays), file, offset, length, array
    )


def _read_texts(key: str, arrays: Arrays) -> StringArray:
    texts = StringArray(
        _typed(arrays[f"{key}.letters"], np.uint8), _typed(arrays[f"{key}.ends"], np.int64)
    )
    if (int(texts.ends[-1]) if len(texts) else 0) != len(
        texts.letters
    ):  # the last stands for all: to read them all would take a scan's time
        raise ValueError("cut off")
    return texts


def _typed(array: NDArray[Any], dtype: Any, axes: int = 1) -> NDArray[Any]:
    if array.dtype != dtype or array.ndim != axes:
        raise ValueError("another kind of array")
    return array


def _holds_together(index: Index) -> bool:
    """Whether the columns of an index from a file fit each other."""
    if not (
        isinstance(index.root, str)
        and isinstance(index.fingerprint, str)
        and isinstance(index.extra, dict)
        and isinstance(index.classes, list)
    ):
        return False
    lengths = [len(index.names), *map(len, index.values.values())]
    for column in index.columns.values():
        if isinstance(column, FileColumn):
            lengths.append(len(column.paths))
            continue
        lengths += [len(column.file), len(column.offset), len(column.length)]
        if column.array is not None and column.array.shapes is not None:
            lengths.append(len(column.array.shapes))
    return bool(index.columns) and set(lengths) == {len(index)}
