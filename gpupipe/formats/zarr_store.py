"""Find the arrays of a Zarr store of version 2 or 3, with the package zarr."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from gpupipe.formats import DamagedError, chunk_codecs
from gpupipe.formats.array_store import ArrayStore, check_dtype
from gpupipe.formats.chunk_codecs import NUMCODECS, Codec
from gpupipe.formats.chunk_grid import ChunkGrid
from gpupipe.formats.store_files import list_store
from gpupipe.formats.stored_arrays import ChunkPlaces, StoredSpans

_ROWS_WITHOUT_BYTES = 1_000_000
_ROWS_PER_BYTE = 100
_MAX_LISTED = 1000
_ABSENT = 2**64 - 1
_INDEX_ENTRY = 16
_CRC_BYTES = 4
TEXT_CODECS = frozenset({"vlen-utf8"})
_V3_CODECS: Mapping[str, str] = {"zstd": "zstd", "blosc": "blosc", "gzip": "gzip"}


@dataclass(frozen=True)
class _Codecs:
    """The codecs of an array: those that turn its numbers into bytes, and those after them.

    Attributes:
        axes: The order of the axes in a stored chunk; () if it is that of the array.
        dtype: The dtype of the stored numbers, with its byte order.
        codecs: The codecs of a chunk's bytes.
    """

    axes: tuple[int, ...]
    dtype: np.dtype[Any]
    codecs: tuple[Codec, ...]


class ZarrStore(ArrayStore):
    """An open Zarr store in a folder, or in a ZIP file.

    Raises:
        DamagedError: The metadata are damaged, or of no Zarr store.
        ValueError: The ZIP file is compressed.
    """

    def __init__(self, path: str) -> None:
        self._files = list_store(path)
        self._numbers = {name: number for number, name in enumerate(self._files.names)}
        try:
            store = zarr.storage.ZipStore(path, mode="r") if self.files == [path] else path
            self._root: Any = zarr.open(store, mode="r", path=self._files.folder)
        except Exception as e:  # whatever damaged JSON leads zarr to
            raise DamagedError(f"zarr cannot open it: {_first_line(e)}") from e

    @property
    def files(self) -> list[str]:
        return self._files.paths

    @property
    def max_rows(self) -> int:
        return _ROWS_WITHOUT_BYTES + _ROWS_PER_BYTE * int(self._files.size.sum())

    def get(self, path: str) -> Any | None:
        inner = path.strip("/")
        if not inner:
            return self._root
        if self.is_array(self._root):
            return None
        try:
            return self._root[inner]
        except KeyError:
            return None
        except Exception as e:  # whatever damaged JSON leads zarr to
            raise DamagedError(f"'{path}' cannot be opened by zarr: {_first_line(e)}") from e

    def is_array(self, node: Any) -> bool:
        return isinstance(node, zarr.Array)

    def list_arrays(self) -> list[str]:
        names = [Path(n) for n in self._files.names if n.endswith((".zarray", "zarr.json"))]
        parents = [f"/{'/'.join(name.parent.parts)}" for name in names[:_MAX_LISTED]]
        return [path for path in parents if self.is_array(self.get(path))]

    def list_members(self, group: Any) -> list[str]:
        return sorted(name for name, _ in group.members())

    def name_dtype(self, array: Any) -> str:
        dtype = array.dtype
        return "text" if dtype.kind in "UST" else str(dtype)

    def read(self, array: Any) -> NDArray[Any]:
        if int(array.metadata.zarr_format) == 2:
            _check_v2_codecs(array.metadata.to_dict(), TEXT_CODECS)
        try:
            return np.asarray(array[()])
        except Exception as e:  # of zarr's, or of a codec
            raise DamagedError(f"'/{array.path}' cannot be read: {_first_line(e)}") from e

    def locate(self, array: Any) -> tuple[ChunkGrid, ChunkPlaces] | StoredSpans:
        metadata = array.metadata
        entry = metadata.to_dict()
        dtype = np.dtype(metadata.dtype.to_native_dtype())
        check_dtype(dtype)
        shape = tuple(map(int, array.shape))
        fill = _read_fill(array, dtype)
        if int(metadata.zarr_format) == 2:
            codecs = _read_v2_codecs(entry, dtype, len(shape))
            chunk = tuple(map(int, entry["chunks"]))
            grid = ChunkGrid(dtype.str, shape, chunk, codecs.codecs, fill, codecs.axes)
            grid.check(self.max_rows)
            return grid, self._find_chunks(array, grid)
        return self._locate_v3(array, entry, dtype, fill)

    def _locate_v3(
        self, array: Any, entry: Mapping[str, Any], dtype: np.dtype[Any], fill: str
    ) -> tuple[ChunkGrid, ChunkPlaces]:
        if entry["chunk_grid"]["name"] != "regular":
            raise ValueError(f"a chunk grid of the kind {entry['chunk_grid']['name']}, not regular")
        shape = tuple(map(int, array.shape))
        outer = tuple(map(int, entry["chunk_grid"]["configuration"]["chunk_shape"]))
        first, *others = entry["codecs"]
        if first["name"] != "sharding_indexed":
            codecs = _read_v3_codecs(entry["codecs"], dtype)
            grid = ChunkGrid(codecs.dtype.str, shape, outer, codecs.codecs, fill, codecs.axes)
            grid.check(self.max_rows)
            return grid, self._find_chunks(array, grid)
        if others:
            raise ValueError("shards that are compressed as a whole, so that no chunk can be read")
        options = first["configuration"]
        codecs = _read_v3_codecs(options["codecs"], dtype)
        inner = tuple(map(int, options["chunk_shape"]))
        grid = ChunkGrid(codecs.dtype.str, shape, inner, codecs.codecs, fill, codecs.axes)
        grid.check(self.max_rows)
        if any(n < 1 or n % m for n, m in zip(outer, inner, strict=True)):
            raise DamagedError(f"shards of {outer} in chunks of {inner}: no array has them")
        shards = ChunkGrid(dtype.str, shape, outer)
        return grid, self._find_inner_chunks(self._find_files(array, shards), shards, grid, options)

    def _find_files(self, array: Any, grid: ChunkGrid) -> NDArray[np.int64]:
        """Return the number of the file of each chunk, int64 (C,); -1 if it has none."""
        inner = array.path.removeprefix(self._files.folder).strip("/")
        folder, encode = f"{inner}/" if inner else "", array.metadata.encode_chunk_key
        numbers = [
            self._numbers.get(folder + encode(position), -1)
            for position in np.ndindex(*grid.counts)
        ]
        return np.array(numbers, np.int64)

    def _find_chunks(self, array: Any, grid: ChunkGrid) -> ChunkPlaces:
        """Return where an array's chunks are. A chunk without a file has the fill value."""
        found, places = self._find_files(array, grid), ChunkPlaces.make_missing(grid.num_chunks)
        stored = np.flatnonzero(found >= 0)
        places.file[stored] = self._files.file[found[stored]]
        places.offset[stored] = self._files.begin[found[stored]]
        places.size[stored] = self._files.size[found[stored]]
        return places

    def _find_inner_chunks(
        self,
        found: NDArray[np.int64],
        shards: ChunkGrid,
        grid: ChunkGrid,
        options: Mapping[str, Any],
    ) -> ChunkPlaces:
        """Return where the chunks inside of shards are, by the index of each shard.

        `found` has the numbers of the shards' files.
        """
        per_shard = [n // m for n, m in zip(shards.chunk, grid.chunk, strict=True)]
        places = ChunkPlaces.make_missing(grid.num_chunks)
        numbers = np.arange(grid.num_chunks).reshape(grid.counts)
        for shard, position in enumerate(np.ndindex(*shards.counts)):
            number = int(found[shard])
            if number < 0:
                continue
            index = self._read_shard_index(number, tuple(per_shard), options)
            # At the end of an axis, a shard may have chunks beyond the array.
            where = tuple(
                slice(p * n, (p + 1) * n) for p, n in zip(position, per_shard, strict=True)
            )
            inside = numbers[where]
            used = index[tuple(map(slice, inside.shape))]
            is_stored = used[..., 0] != _ABSENT
            chosen = inside[is_stored]
            places.file[chosen] = self._files.file[number]
            offset = used[..., 0][is_stored].astype(np.int64)
            places.offset[chosen] = self._files.begin[number] + offset
            places.size[chosen] = used[..., 1][is_stored].astype(np.int64)
        return places

    def _read_shard_index(
        self, number: int, per_shard: tuple[int, ...], options: Mapping[str, Any]
    ) -> NDArray[np.uint64]:
        """Return the offset and the size of each chunk in a shard, uint64 (*per_shard, 2)."""
        names = [codec["name"] for codec in options["index_codecs"]]
        if names not in (["bytes"], ["bytes", "crc32c"]):
            raise ValueError(f"shards with an index of the codecs {', '.join(names)}")
        files, has_crc = self._files, "crc32c" in names
        size = int(np.prod(per_shard)) * _INDEX_ENTRY + _CRC_BYTES * has_crc
        name, total, begin = files.names[number], int(files.size[number]), int(files.begin[number])
        if size > total:
            raise DamagedError(f"the shard {name} is cut off: {total:,} bytes")
        is_first = options.get("index_location", "end") == "start"
        begin += 0 if is_first else total - size
        data = np.fromfile(files.paths[files.file[number]], np.uint8, size, offset=begin)
        if has_crc:
            try:
                chunk_codecs.check_crc32c(data)
            except DamagedError as e:
                raise DamagedError(f"the index of the shard {name} is {e}") from e
            data = data[:-_CRC_BYTES]
        order = options["index_codecs"][0].get("configuration", {}).get("endian", "little")
        index = data.view("<u8" if order == "little" else ">u8").astype(np.uint64)
        index = index.reshape(*per_shard, 2)
        ends = index[index[..., 0] != _ABSENT]
        if (len(ends) and (ends > total).any()) or (ends.sum(axis=-1) > total).any():
            raise DamagedError(f"the index of the shard {name} leads beyond its end")
        return index


def _first_line(e: Exception) -> str:
    return str(e).splitlines()[0][:300] if str(e) else type(e).__name__


def _read_fill(array: Any, dtype: np.dtype[Any]) -> str:
    """Return the bytes of the fill value in hexadecimal, as numbers of `dtype`; 0 if it is null."""
    fill = array.fill_value
    return np.asarray(0 if fill is None else fill).astype(dtype).reshape(1).tobytes().hex()


def _check_v2_codecs(
    entry: Mapping[str, Any], others: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    """Return the configurations of the codecs of an array of version 2.

    Raises:
        ValueError: One is neither in NUMCODECS nor in `others`: it could run code, for instance.
    """
    every = [*(entry["filters"] or ()), *filter(None, [entry["compressor"]])]
    configs = [_as_config(codec) for codec in every]
    for config in configs:
        if config.get("id") not in others:
            _use_numcodecs(config)
    return configs


def _read_v2_codecs(entry: Mapping[str, Any], dtype: np.dtype[Any], axes: int) -> _Codecs:
    codecs = [_use_numcodecs(config) for config in _check_v2_codecs(entry)]
    order = tuple(reversed(range(axes))) if entry["order"] == "F" else ()
    return _Codecs(order, dtype, tuple(codecs))


def _as_config(codec: Any) -> dict[str, Any]:
    return dict(codec if isinstance(codec, Mapping) else codec.get_config())


def _use_numcodecs(config: dict[str, Any]) -> Codec:
    name = config.get("id")
    if name not in NUMCODECS:
        raise ValueError(
            f"the codec {name}, which gpupipe does not use: write it with blosc, zstd or gzip"
        )
    return {"id": "numcodecs", "config": config}


def _read_v3_codecs(entries: Sequence[Mapping[str, Any]], dtype: np.dtype[Any]) -> _Codecs:
    axes: tuple[int, ...] = ()
    codecs: list[Codec] = []
    for entry in entries:
        name, options = entry["name"], dict(entry.get("configuration") or {})
        if name == "transpose":
            order = tuple(map(int, options["order"]))
            axes = tuple(axes[n] for n in order) if axes else order
        elif name == "bytes":
            if options.get("endian") is not None:
                dtype = dtype.newbyteorder("<" if options["endian"] == "little" else ">")
        elif name == "crc32c":
            codecs.append({"id": "crc32c"})
        elif name in _V3_CODECS:
            codecs.append(_use_numcodecs({"id": _V3_CODECS[name]}))
        elif name.startswith("numcodecs."):
            codecs.append(_use_numcodecs({"id": name.removeprefix("numcodecs."), **options}))
        else:
            raise ValueError(
                f"the codec {name}, which gpupipe does not use: write it with blosc, zstd or gzip"
            )
    return _Codecs(axes, dtype, tuple(codecs))
