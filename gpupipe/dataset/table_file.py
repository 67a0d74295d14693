"""Writes dataclasses of arrays to files atomically, and memory-maps them again.

    write_table(path, Spans(StringArray(...), offset, length))
    spans = open_table(path, Spans)

The file format is gpupipe's own, because an index is memory-mapped, and is replaced in one step.
NumPy cannot memory-map the arrays of an .npz, gpupipe does not require Arrow, and several .npy
files cannot be replaced together. For single arrays, use .npy.

The file holds a magic line, the length of the header and its CRC-32 (8 bytes each, little-endian),
the header, and the arrays. Each array begins at a multiple of 64 bytes. The header holds a checksum
of each array. Opening a file verifies all checksums, which takes milliseconds for a million rows.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from gpupipe.runtime.files import open_regular, write_atomically

_MAGIC = b"gpupipe-index-9\n"
_NUMBER_BYTES = 8
_ALIGNMENT = 64
_BLOCK_BYTES = 4096
_KINDS = "iufb"

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


class OtherVersionError(ValueError):
    """Another version of gpupipe wrote the file, or the file is no table file."""


def write_table(path: Path, value: Any, is_durable: bool = False) -> None:
    """Write a dataclass to a table file atomically. Missing folders are created.

    Args:
        path: The file.
        value: The dataclass. Each field holds an array of numbers or booleans, a JSON value, a
            dataclass of fields like these, or a dict whose values are any of these.
        is_durable: Whether the file is to be complete even if the power fails afterwards.

    Raises:
        OSError: The file cannot be written.
    """
    arrays: Arrays = {}
    packed = _pack(value, arrays, "", {})
    layout = {
        name: [array.dtype.str, array.shape, compute_checksum(array)]
        for name, array in arrays.items()
    }
    text = json.dumps({"value": packed, "arrays": layout}).encode()
    numbers = (n.to_bytes(_NUMBER_BYTES, "little") for n in (len(text), zlib.crc32(text)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path, is_durable) as temporary, temporary.open("xb") as f:
        f.write(_MAGIC + b"".join(numbers) + text)
        for array in arrays.values():
            f.write(b"\0" * (-f.tell() % _ALIGNMENT))
            f.write(np.ascontiguousarray(array).data)


def count_bytes(value: Any) -> int:
    """Return how many bytes the arrays of a dataclass take in a table file."""
    arrays: Arrays = {}
    _pack(value, arrays, "", {})
    return sum(array.nbytes + _ALIGNMENT for array in arrays.values())


def open_table(path: Path, model: type[T], classes: Sequence[type[Any]] = ()) -> T:
    """Return the dataclass in a table file, with its arrays memory-mapped.

    Args:
        path: The file.
        model: The class of the dataclass.
        classes: The classes that a field may hold if its annotation is a protocol, such as Column.

    Raises:
        OSError: The file cannot be read.
        OtherVersionError: Another version of gpupipe wrote the file, or it is no table file.
        ValueError, TypeError, KeyError, AttributeError: The file is truncated or damaged, or holds
            another dataclass.
    """
    size = path.stat().st_size
    header, offset = _read_header(path, size)
    arrays: Arrays = {}
    for name, (dtype, shape, checksum) in header["arrays"].items():
        offset += -offset % _ALIGNMENT
        arrays[name] = _map_array(path, np.dtype(dtype), tuple(shape), offset, size)
        offset += arrays[name].nbytes
        if offset > size or compute_checksum(arrays[name]) != checksum:
            raise ValueError(f"the checksum of '{name}' differs")
    if size != offset:
        raise ValueError("cut off, or longer than its arrays")
    unpacker = _Unpacker(arrays, {kind.__name__: kind for kind in classes})
    value: T = unpacker.unpack(model, header["value"], "")
    return value


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of a file of `size` bytes, and the offset at which it ends.

    Raises ValueError or TypeError if the file is no table file, or its header is damaged.
    """
    with open_regular(path) as f:
        if f.read(len(_MAGIC)) != _MAGIC:
            raise OtherVersionError("another format, or another version")
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
    """Memory-map the array at `offset` of a file of `size` bytes.

    Raises ValueError or TypeError if there can be no array of this dtype and shape.
    """
    if dtype.kind not in _KINDS or not all(type(n) is int and 0 <= n <= size for n in shape):
        raise ValueError("no array")
    if not all(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)  # faster to index


def compute_checksum(array: NDArray[Any]) -> int:
    """Return a checksum of an array: the CRC-32 of the sums of its 4 KiB blocks.

    Bytes after the last whole block enter the CRC as they are. A change of one bit of a block
    changes the sum of its 64-bit words. Sums take a tenth of the time of a CRC of the words.
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    end = len(data) - len(data) % _BLOCK_BYTES
    sums = data[:end].view(np.uint64).reshape(-1, _BLOCK_BYTES // 8).sum(1, dtype=np.uint64)
    return zlib.crc32(data[end:].data, zlib.crc32(sums.data))


def _pack(value: Any, arrays: Arrays, key: str, seen: dict[int, str]) -> Any:
    """Return a dataclass as JSON values, and add its arrays to `arrays`.

    Args:
        value: The dataclass, which may hold arrays, other dataclasses, and dicts of them.
        arrays: The function adds each array here, by its field path, such as "names.data".
        key: The field path of `value`; "" for the outermost dataclass.
        seen: Maps the id() of each dataclass that is packed already to its field path. Each
            dataclass is packed once.
    """
    if isinstance(value, np.ndarray):
        arrays[key] = value
        return key
    if is_dataclass(value):
        if id(value) in seen:
            return {"same": seen[id(value)]}
        seen[id(value)] = key
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {"class": type(value).__name__} | _pack(parts, arrays, key, seen)
    if isinstance(value, dict):
        return {name: _pack(part, arrays, _join(key, name), seen) for name, part in value.items()}
    return value


class _Unpacker:
    """Rebuilds a dataclass from the JSON values that `_pack` returned.

    Args:
        arrays: The arrays, by field path.
        classes: The classes that a field may hold if its annotation is a protocol, by class name.
    """

    def __init__(self, arrays: Arrays, classes: Mapping[str, type[Any]]) -> None:
        self._arrays, self._classes = arrays, classes
        self._unpacked: dict[str, Any] = {}

    def unpack(self, hint: Any, entry: Any, key: str) -> Any:
        """Rebuild the value of a field.

        Args:
            hint: The type annotation of the field.
            entry: The JSON values of the field.
            key: The field path, such as "names.data".

        Raises:
            KeyError, TypeError, ValueError: A part is missing, or its type differs from its hint.
        """
        hint = _expand_alias(hint)
        origin = get_origin(hint)
        if isinstance(hint, UnionType):
            kinds = {kind.__name__: kind for kind in get_args(hint) if kind is not type(None)}
            name = entry.get("class") if isinstance(entry, dict) else None
            hint = kinds.get(str(name), next(iter(kinds.values())))
            return None if entry is None else self.unpack(hint, entry, key)
        if origin is np.ndarray:
            return self._find_array(hint, entry)
        if origin is dict and get_args(hint)[1] is not Any:
            kind = get_args(hint)[1]
            return {name: self.unpack(kind, part, _join(key, name)) for name, part in entry.items()}
        if is_dataclass(hint) or getattr(hint, "_is_protocol", False):
            return self._unpack_dataclass(hint, entry, key)
        if not isinstance(entry, list if origin is tuple else origin or hint):
            raise TypeError(f"'{key}' is of another type")
        return tuple(entry) if origin is tuple else entry

    def _unpack_dataclass(self, hint: Any, entry: Any, key: str) -> Any:
        if "same" in entry:
            return self._unpacked[entry["same"]]
        model: Any = hint if is_dataclass(hint) else self._classes[entry["class"]]
        parts = {
            name: self.unpack(kind, entry[name], _join(key, name))
            for name, kind in _list_fields(model).items()
        }
        self._unpacked[key] = model(**parts)
        return self._unpacked[key]

    def _find_array(self, hint: Any, entry: Any) -> NDArray[Any]:
        array, (dtype,) = self._arrays[entry], get_args(get_args(hint)[1])
        if dtype is not Any and array.dtype != dtype:
            raise TypeError(f"'{entry}' is of another dtype")
        return array


def _expand_alias(hint: Any) -> Any:
    """Replace a generic alias, as `NDArray` is from numpy 2.5 on, by the type it stands for."""
    model = getattr(get_origin(hint), "__value__", None)
    return hint if model is None else model[get_args(hint)]


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


@cache
def _list_fields(model: type[Any]) -> dict[str, Any]:
    """Return the type annotation of each field of a dataclass, by the field's name."""
    hints = get_type_hints(model)
    return {field.name: hints[field.name] for field in fields(model)}
