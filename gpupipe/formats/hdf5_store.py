"""Find the arrays of an HDF5 file, with h5py. Runs in a process of its own: libhdf5 may crash."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError, hdf5_heap
from gpupipe.formats.array_store import ArrayStore, check_dtype
from gpupipe.formats.chunk_codecs import Codec
from gpupipe.formats.chunk_grid import ChunkGrid
from gpupipe.formats.stored_arrays import ChunkPlaces, StoredSpans

_ROWS_WITHOUT_BYTES = 1_000_000
_ROWS_PER_BYTE = 100
"""A file is not believed to have more rows than this: deflate shrinks to a thousandth at best."""
_MAX_LISTED = 1000
_WORD = 8
_CODECS: dict[int, Codec] = {
    h5py.h5z.FILTER_DEFLATE: {"id": "deflate"},
    h5py.h5z.FILTER_FLETCHER32: {"id": "fletcher32"},
    h5py.h5z.FILTER_LZF: {"id": "lzf"},
    32001: {"id": "numcodecs", "config": {"id": "blosc"}},
    32015: {"id": "numcodecs", "config": {"id": "zstd"}},
}
"""Codecs by the numbers of HDF5's filters, in the registry of the HDF Group."""


class Hdf5Store(ArrayStore):
    """An open HDF5 file."""

    def __init__(self, path: str, file: h5py.File) -> None:
        self._path, self._file = path, file
        self._size = os.path.getsize(path)  # noqa: PTH202

    @classmethod
    @contextmanager
    def open(cls, path: str) -> "Iterator[Hdf5Store]":
        """Open a file, and close it at the end of the `with` block.

        Raises:
            DamagedError: It is no HDF5 file, or libhdf5 finds damage in it.
            OSError: It cannot be read.
        """
        with open(path, "rb"):  # libhdf5's reasons are hard to read
            pass
        try:
            with h5py.File(path, "r", locking=False) as file:
                yield cls(path, file)
        except (OSError, RuntimeError, KeyError, TypeError, OverflowError) as e:
            reason = str(e).splitlines()[0][:300] if str(e) else type(e).__name__
            raise DamagedError(f"libhdf5 cannot read it: {reason}") from e

    @property
    def files(self) -> list[str]:
        return [self._path]

    @property
    def max_rows(self) -> int:
        return _ROWS_WITHOUT_BYTES + _ROWS_PER_BYTE * self._size

    def get(self, path: str) -> Any | None:
        try:
            node = self._file.get(path)
        except (ValueError, RuntimeError) as e:
            raise DamagedError(f"'{path}' cannot be opened: {e}") from e
        return node if isinstance(node, h5py.Dataset | h5py.Group) else None

    def is_array(self, node: Any) -> bool:
        return isinstance(node, h5py.Dataset)

    def list_arrays(self) -> list[str]:
        paths: list[str] = []

        def add(name: str, node: Any) -> bool | None:
            if isinstance(node, h5py.Dataset):
                paths.append(f"/{name}")
            return len(paths) > _MAX_LISTED or None  # anything but None ends the visit

        self._file.visititems(add)
        return paths

    def list_members(self, group: Any) -> list[str]:
        return [name for name in group if isinstance(group.get(name), h5py.Dataset | h5py.Group)]

    def name_dtype(self, array: Any) -> str:
        base = h5py.check_vlen_dtype(array.dtype)
        is_text = h5py.check_string_dtype(array.dtype) is not None
        return "text" if is_text else f"ragged {base}" if base is not None else str(array.dtype)

    def read(self, array: Any) -> NDArray[Any]:
        is_text = h5py.check_string_dtype(array.dtype) is not None
        return np.asarray((array.asstr() if is_text else array)[()])

    def locate(self, array: Any) -> tuple[ChunkGrid, ChunkPlaces] | StoredSpans:
        if array.file.filename != self._file.filename:
            raise ValueError(f"a link into another file: name {array.file.filename} in data.files")
        if array.shape is None:
            raise ValueError("an empty dataset, which has no shape")
        if h5py.check_string_dtype(array.dtype) is not None:
            raise ValueError("texts, and no numbers: a text can be the label")
        base = h5py.check_vlen_dtype(array.dtype)
        if base is not None:
            return self._locate_ragged(array, np.dtype(base))
        dtype, shape = array.dtype, tuple(map(int, array.shape))
        if dtype.kind == "V" and not dtype.names and not dtype.subdtype:
            # Opaque bytes, as h5py stores np.void: image files, for instance.
            return self._locate_chunks(array, np.dtype("u1"), (*shape, dtype.itemsize))
        check_dtype(dtype)
        _check_type(array)
        return self._locate_chunks(array, dtype, shape)

    def _locate_chunks(
        self, array: Any, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> tuple[ChunkGrid, ChunkPlaces]:
        plist = array.id.get_create_plist()
        layout = plist.get_layout()
        if layout == h5py.h5d.VIRTUAL:
            raise ValueError(
                "a virtual dataset, whose numbers are in other files: name those in data.files"
            )
        if layout == h5py.h5d.COMPACT or plist.get_external_count():
            where = "the header of the file" if layout == h5py.h5d.COMPACT else "other files"
            raise ValueError(f"its numbers are in {where}: write it with chunks, or contiguous")
        fill = _read_fill(array, dtype)
        if layout == h5py.h5d.CONTIGUOUS:
            return self._locate_contiguous(array, ChunkGrid(dtype.str, shape, shape, (), fill))
        chunk = (*map(int, array.chunks), *shape[len(array.chunks) :])
        grid = ChunkGrid(dtype.str, shape, chunk, _read_codecs(plist), fill)
        grid.check(self.max_rows)
        return grid, self._find_chunks(array, grid)

    def _locate_contiguous(self, array: Any, grid: ChunkGrid) -> tuple[ChunkGrid, ChunkPlaces]:
        """Return the numbers as one chunk; as a chunk for each row if they are not as in memory."""
        shape, offset = grid.shape, array.id.get_offset()
        if not shape or not all(shape):
            empty = ChunkGrid(grid.dtype, shape, tuple(n or 1 for n in shape), (), grid.fill)
            empty.check(self.max_rows)
            return empty, ChunkPlaces.make_missing(empty.num_chunks)
        size = math.prod(shape) * grid.stored.itemsize
        if offset is not None and offset + size > self._size:
            lacking = offset + size - self._size
            raise DamagedError(f"cut off: {lacking:,} of its {size:,} bytes are missing")
        if offset is None or not grid.is_plain:
            grid = ChunkGrid(grid.dtype, shape, (1, *shape[1:]), (), grid.fill)
        grid.check(self.max_rows)
        places = ChunkPlaces.make_missing(grid.num_chunks)
        if offset is not None:
            places.offset[:] = offset + np.arange(grid.num_chunks) * grid.chunk_bytes
            places.size[:] = grid.chunk_bytes
        return grid, places

    def _find_chunks(self, array: Any, grid: ChunkGrid) -> ChunkPlaces:
        places, counts, chunk = ChunkPlaces.make_missing(grid.num_chunks), grid.counts, grid.chunk
        offset, size, mask, file_size = places.offset, places.size, places.mask, self._size
        strides = [math.prod(counts[axis + 1 :]) for axis in range(len(counts))]

        def add(info: Any) -> None:
            number = 0
            for begin, length, stride, count in zip(
                info.chunk_offset, chunk, strides, counts, strict=False
            ):
                position = begin // length
                if position >= count:
                    return  # left of an array that was made smaller
                number += position * stride
            if info.byte_offset + info.size > file_size:
                raise DamagedError(
                    f"cut off: a chunk at byte {info.byte_offset:,} has {info.size:,} bytes, and "
                    f"the file has {file_size:,}"
                )
            offset[number], size[number] = info.byte_offset, info.size
            mask[number] = info.filter_mask

        if array.id.get_storage_size():
            array.id.chunk_iter(add)
        return places

    def _locate_ragged(self, array: Any, base: np.dtype[Any]) -> StoredSpans:
        check_dtype(base)
        if not base.isnative or base.kind == "c":
            raise ValueError(f"ragged rows of {base}: write them in little-endian real numbers")
        if self._file.id.get_create_plist().get_sizes() != (_WORD, _WORD):
            raise ValueError("a file whose addresses do not have 8 bytes: write it again with h5py")
        shape = tuple(map(int, array.shape))
        reference = hdf5_heap.REFERENCE.itemsize
        grid, places = self._locate_chunks(array, np.dtype("u1"), (*shape, reference))
        data = np.memmap(self._path, np.uint8, "r").view(np.ndarray)
        numbers = np.zeros((math.prod(grid.shape[:-1]), reference), np.uint8)
        if len(grid.shape) > 2:
            raise ValueError(f"ragged rows of {len(shape)} axes: write one ragged row a sample")
        rows = grid.chunk[0] if len(grid.shape) == 2 else 1
        for number in np.flatnonzero(places.offset >= 0).tolist():
            begin, size = int(places.offset[number]), int(places.size[number])
            chunk = grid.decode(data[begin : begin + size], int(places.mask[number]))
            part = numbers[number * rows : (number + 1) * rows]
            part[:] = chunk.reshape(-1, reference)[: len(part)]
        references = numbers.view(hdf5_heap.REFERENCE)[:, 0]
        start = int(self._file.userblock_size)
        offset, length = hdf5_heap.locate_rows(data, references, base.itemsize, start)
        return StoredSpans(base.name, offset, length)


def _check_type(array: Any) -> None:
    """Raise ValueError if numbers are stored in another format than NumPy's dtype says."""
    dtype = array.dtype
    stored = array.id.get_type()
    if dtype.kind in "iuf" and not isinstance(stored, h5py.h5t.TypeEnumID):
        if not stored.equal(h5py.h5t.py_create(dtype, logical=True)):
            raise ValueError(f"numbers in a format of its own, near {dtype}: write it as {dtype}")
    elif stored.get_size() != dtype.itemsize:
        raise ValueError(f"numbers of {stored.get_size()} bytes, and {dtype} has {dtype.itemsize}")


def _read_fill(array: Any, dtype: np.dtype[Any]) -> str:
    """Return the bytes of the fill value in hexadecimal, as numbers of `dtype`."""
    fill = array.fillvalue if dtype == array.dtype else 0
    return np.asarray(fill).astype(dtype).reshape(1).tobytes().hex()


def _read_codecs(plist: Any) -> tuple[Codec, ...]:
    """Return the codecs of a dataset's filters.

    Raises:
        ValueError: gpupipe cannot undo a filter.
    """
    codecs: list[Codec] = []
    for number in range(plist.get_nfilters()):
        code, _, values, name = plist.get_filter(number)
        if code == h5py.h5z.FILTER_SHUFFLE:
            codecs.append({"id": "shuffle", "itemsize": int(values[0]) if values else 1})
        elif code in _CODECS:
            codecs.append(_CODECS[code])
        else:
            raise ValueError(
                f"the filter {name.decode(errors='replace') or code} ({code}), which gpupipe "
                "cannot undo: write it with gzip, lzf, blosc or zstd"
            )
    return tuple(codecs)
