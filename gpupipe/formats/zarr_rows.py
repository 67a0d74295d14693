"""Cuts a Zarr store into smaller stores of its rows, which have its chunks as they are.

The chunks of a part are numbered from 0, and its metadata say how many rows it has. So each part is
a whole store, for other programs too.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import counted
from gpupipe.formats import DamagedError
from gpupipe.formats.array_store import find_array
from gpupipe.formats.stored_arrays import StoreRequest
from gpupipe.formats.zarr_store import ZarrStore

METADATA = ("zarr.json", ".zgroup", ".zarray", ".zattrs")
"""The names of the objects of a store that say what it has."""
_V3 = METADATA[0]
_MAX_WHOLE = 256_000_000
"""The most bytes of numbers of an array that is read whole, because its chunks cannot be shared
out among parts.
"""
_MAX_ROWS = 1_000_000
"""The most rows of a part, far below what a store may have by its bytes alone."""


@dataclass(frozen=True)
class Chunk:
    """A chunk of a part, or a shard of chunks.

    Attributes:
        name: Its path in the part.
        key: Its path in the whole store.
        max_bytes: About the most bytes that it takes in the store: its numbers, uncompressed.
    """

    name: str
    key: str
    max_bytes: int


@dataclass(frozen=True)
class _Array:
    """An array of the store.

    Attributes:
        path: Its path in the store, without slashes around it.
        array: zarr's array.
    """

    path: str
    array: Any

    @cached_property
    def chunk(self) -> tuple[int, ...]:
        """The shape of what is one object: a chunk, or a shard of chunks."""
        if self.is_v3:
            kind = self.array.metadata.to_dict()["chunk_grid"]["name"]
            if kind != "regular":
                raise ValueError(f"'/{self.path}': a chunk grid of the kind {kind}, not regular")
        chunk = tuple(map(int, self.array.shards or self.array.chunks))
        if min(chunk) < 1:
            raise DamagedError(f"'/{self.path}': chunks of {chunk}: no array has them")
        return chunk

    @cached_property
    def is_v3(self) -> bool:
        return int(self.array.metadata.zarr_format) == 3

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.array.shape))

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * int(self.array.dtype.itemsize)

    def join(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def iter_chunks(self, begin: int, end: int) -> Iterator[Chunk]:
        """Yield the chunks of rows; `begin` is the first row of a chunk."""
        encode = self.array.metadata.encode_chunk_key
        first, last = begin // self.chunk[0], -(-end // self.chunk[0])
        pairs = zip(self.shape[1:], self.chunk[1:], strict=True)
        counts = [-(-length // size) for length, size in pairs]
        size = math.prod(self.chunk) * int(self.array.dtype.itemsize)
        for row, *others in np.ndindex(last - first, *counts):
            name, key = encode((row, *others)), encode((first + row, *others))
            yield Chunk(self.join(name), self.join(key), size)


class ZarrRows:
    """A Zarr store, to be cut into parts of its rows. Only its metadata need to be there at first.

    Args:
        folder: The folder of the store.
        request: The arrays of the samples. The first field's chunks are never cut.
        max_bytes: The bytes of numbers that a part may have; it has the rows of a chunk at least.

    Attributes:
        count: The rows of the store.
        rows: The rows of a part; the last one may have fewer.

    Raises:
        DamagedError: The metadata are damaged.
        ValueError: The store lacks an array, or arrays differ in their rows.
    """

    def __init__(self, folder: Path, request: StoreRequest, max_bytes: int) -> None:
        self._folder = folder
        store = ZarrStore(str(folder))
        arrays = [_Array(path.strip("/"), find_array(store, path)) for path in request.list_paths()]
        unique = {array.path: array for array in arrays}
        self._arrays, self._store = list(unique.values()), store
        self.count = self._count_rows()
        self._whole: dict[str, NDArray[Any]] = {}
        self._aligned = self._choose_aligned()
        step = math.lcm(*(array.chunk[0] for array in self._aligned))
        of_step = step * max(1, sum(array.row_bytes for array in self._aligned))
        self.rows = step * max(1, min(max_bytes // of_step, _MAX_ROWS // step))

    def _count_rows(self) -> int:
        first = self._arrays[0]
        for array in self._arrays:
            if not array.shape:
                raise ValueError(f"'/{array.path}' is a single number, which has no rows")
            if array.shape[0] != first.shape[0]:
                raise ValueError(
                    f"{counted(array.shape[0], 'row')} in '/{array.path}', but "
                    f"{first.shape[0]:,} in '/{first.path}': there should be one for each sample"
                )
        return first.shape[0]

    def _choose_aligned(self) -> list[_Array]:
        """Return the arrays whose chunks are shared out; the others are read whole."""
        first, *others = self._arrays
        aligned, step = [first], first.chunk[0]
        for array in others:
            is_small = array.shape[0] * array.row_bytes <= _MAX_WHOLE
            if array.array.dtype.kind in "OT" or (step % array.chunk[0] and is_small):
                continue
            aligned.append(array)
            step = math.lcm(step, array.chunk[0])
        return aligned

    @property
    def arrays_to_read(self) -> Sequence[str]:
        """The paths of the arrays that `read_arrays` reads, and all of whose objects it needs."""
        return [array.path for array in self._arrays if array not in self._aligned]

    def read_arrays(self) -> None:
        """Read the arrays of `arrays_to_read`, whose objects must be in the folder by now.

        Raises:
            DamagedError: An array is damaged.
            ValueError: It has a codec that gpupipe does not use.
        """
        store = ZarrStore(str(self._folder))
        for array in self._arrays:
            if array not in self._aligned:
                self._whole[array.path] = store.read(array.array)

    def iter_chunks(self, begin: int, end: int) -> Iterator[Chunk]:
        """Yield the chunks of the rows of a part. Those that the store lacks have its fill value.

        Args:
            begin: The first row, a multiple of `rows`.
            end: The row after the last one.
        """
        for array in self._aligned:
            yield from array.iter_chunks(begin, end)

    def iter_members(self, begin: int, end: int) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of each file of a part that is no chunk of the store."""
        own = {array.path for array in self._arrays}
        for path in sorted({path for one in own for path in list_above(one)} - own):
            yield from iter_group(self._folder, path)
        for array in self._arrays:
            yield from self._iter_array(array, begin, end)

    def _iter_array(self, array: _Array, begin: int, end: int) -> Iterator[tuple[str, bytes]]:
        is_v3 = array.is_v3
        name = _V3 if is_v3 else ".zarray"
        entry: dict[str, Any] = json.loads((self._folder / array.path / name).read_bytes())
        entry["shape"] = [end - begin, *array.shape[1:]]
        whole = self._whole.get(array.path)
        if whole is not None:
            entry |= _describe_plain(entry, is_v3, whole)
            key = array.array.metadata.encode_chunk_key((0,) * len(array.shape))
            yield array.join(key), _encode(whole[begin:end], entry, is_v3)
        yield array.join(name), json.dumps(entry).encode()
        attributes = self._folder / array.path / ".zattrs"
        if not is_v3 and attributes.exists():
            yield array.join(".zattrs"), attributes.read_bytes()


def list_above(path: str) -> list[str]:
    """Return the groups that a path is in: of "a/b/c" they are "", "a" and "a/b"."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts))] if path else []


def iter_group(folder: Path, path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the metadata of a group of a store, as `iter_members` does, but not its members' own.

    Args:
        folder: The folder of the store.
        path: The group's path in it, without slashes around it.
    """
    for name in METADATA:
        file = folder / path / name
        if file.exists():
            entry = json.loads(file.read_bytes())
            entry.pop("consolidated_metadata", None)  # of the whole store, with all of its rows
            yield (f"{path}/{name}" if path else name), json.dumps(entry).encode()


def _describe_plain(entry: dict[str, Any], is_v3: bool, values: NDArray[Any]) -> dict[str, Any]:
    """Return what metadata say of an array that is one chunk, and is not compressed."""
    is_text, shape = values.dtype.kind in "OT", [max(1, n) for n in entry["shape"]]
    if not is_v3:
        filters = [{"id": "vlen-utf8"}] if is_text else None
        return {"chunks": shape, "compressor": None, "filters": filters, "order": "C"}
    codec = {"name": "bytes", "configuration": {"endian": "little"}}
    return {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "codecs": [{"name": "vlen-utf8"} if is_text else codec],
    }


def _encode(values: NDArray[Any], entry: dict[str, Any], is_v3: bool) -> bytes:
    if values.dtype.kind in "OT":
        from numcodecs import VLenUTF8

        return bytes(VLenUTF8().encode(values.astype(object)))
    dtype = values.dtype.newbyteorder("<") if is_v3 else np.dtype(entry["dtype"])
    return values.astype(dtype).tobytes()
