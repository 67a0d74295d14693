"""The base of the sources hdf5 and zarr: their options, specs, order and index."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, model_validator

from gpupipe.dataset.array_specs import Layout, build_array_spec
from gpupipe.dataset.chunk_column import ChunkColumn
from gpupipe.dataset.columns import Column
from gpupipe.dataset.file_source import FileSource
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Progress, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.dataset.store_index import Stores, build_index
from gpupipe.decoders.image_header import read_header
from gpupipe.errors import DataError, counted, did_you_mean
from gpupipe.formats.array_store import ITSELF
from gpupipe.formats.stored_arrays import StoreRequest
from gpupipe.runtime.installation import require_extra
from gpupipe.sampling.chunk_order import ChunkOrder
from gpupipe.schema.field_types import WHOLE, Bytes
from gpupipe.sources.helpers.store_reader import StoreReader

_HEADER_BYTES = 65_536
_MIN_CACHE_BYTES = 1_000_000
_ATTRIBUTE = "@"
Paths = Annotated[dict[str, Annotated[str, Field(min_length=1)]], Field(min_length=1)]


OPTIONS = """\
    fields: The array of each field: {FIELD: PATH}, where FIELD is the name in a batch, such as
        {image: /images, mask: /masks}. The first field is the one that steps work on. Each row
        along the first axis is a sample. "/" is a Zarr store that is an array.
    label: The array of labels, whole numbers or texts; null if there are none. With `groups`, also
        "@NAME", an attribute of the sample's group.
    values: The array of each value: {VALUE: PATH}, with one or several numbers a sample.
    groups: The group whose members are the samples, such as /scans. The other paths are then
        relative to each member: {image: image} is /scans/0001/image. "." is a member that is an
        array itself. null: rows are samples.
    layout: One letter for each axis of a sample, such as HWC: of the first field, or of each field,
        {image: HWC, mask: HW}. By default L, HW, CHW or CDHW, by the number of axes.
    order: rows: shuffled samples are a permutation of all rows. chunks: the chunks are shuffled,
        and the samples of `buffer` chunks are mixed. That is no full permutation, but each chunk is
        decoded once an epoch. Without loader.shuffle, it changes nothing.
    buffer: With `order: chunks`: the number of chunks that are mixed. null: 64, or as many as
        `chunk_cache` holds.
    chunk_cache: The bytes of decoded chunks that each process keeps, such as 1GB.
"""
"""The docstrings of the options of ArrayStoreSource, for its subclasses."""


class ArrayStoreSource(FileSource):
    """The base of sources whose samples are in the arrays of HDF5 files or Zarr stores.

    `OPTIONS` describes the options.

    Attributes:
        modules: The modules that the indexing process needs.
    """

    modules: ClassVar[tuple[str, ...]]
    not_indexed: ClassVar[frozenset[str]] = FileSource.not_indexed | {
        "layout",
        "order",
        "buffer",
        "chunk_cache",
    }
    column_types: ClassVar[tuple[type[Column], ...]] = (*FileSource.column_types, ChunkColumn)

    fields: Paths
    label: str | None = None
    values: dict[str, str] = Field(default={})
    groups: str | None = None
    layout: Layout | dict[str, Layout] | None = None
    order: Literal["rows", "chunks"] = "rows"
    buffer: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = None
    chunk_cache: Bytes = Bytes(256_000_000)

    _index_of_process: Index | None = PrivateAttr(None)
    _reader: StoreReader | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _options_fit(self) -> "ArrayStoreSource":
        if self.buffer is not None and self.order == "rows":
            raise ValueError("buffer is for order: chunks: set that, or leave buffer out")
        if self.chunk_cache < _MIN_CACHE_BYTES:
            raise ValueError(
                f"chunk_cache is {int(self.chunk_cache):,}, but should be at least 1MB"
            )
        if isinstance(self.layout, dict):
            for name in self.layout:
                if name not in self.fields:
                    hint = did_you_mean(name, self.fields)
                    raise ValueError(f"layout: no field is called '{name}'{hint}")
        of_group = self.label is not None and self.label.startswith(_ATTRIBUTE)
        if of_group and self.groups is None:
            raise ValueError(
                f"label: {self.label} is an attribute of a sample's group: set groups, or name an "
                "array"
            )
        if self.groups is None and ITSELF in self.fields.values():
            raise ValueError(f"fields: '{ITSELF}' is for arrays in a group: set groups")
        return self

    # --- what a subclass implements

    @abstractmethod
    def list_stores(self) -> list[Path]:
        """Return the HDF5 files, or the folders of the Zarr stores, in the order of the index.

        Raises:
            DataError: There is none, or one is missing.
        """

    # --- Source

    @property
    def request(self) -> StoreRequest:
        """What is read of each store."""
        return StoreRequest(self.fields, self.label, self.values, self.groups)

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.fields), list(self.values)

    def specs(self) -> dict[str, Spec]:
        index = self.index() if self._index_of_process is None else self._index_of_process
        pairs: dict[str, bool] = index.extra["pairs"]
        return {
            name: Spec()
            if index.columns[name].array is None
            else build_array_spec(index, name, self._layout_of(name), pairs[name])
            for name in self.fields
        }

    def _layout_of(self, field: str) -> str | None:
        if isinstance(self.layout, dict):
            return self.layout.get(field)
        return self.layout if field == next(iter(self.fields)) else None

    def index(self, progress: Progress = ignore_progress) -> Index:
        files = self.list_files()
        index = self.load_or_build(
            files,
            lambda: self.build(files, progress),
            list(map(str, files)),
            self._index_of_process,
        )
        size = int(self.chunk_cache)
        columns = {
            name: replace(column, max_bytes=size)
            for name, column in index.columns.items()
            if isinstance(column, ChunkColumn) and column.max_bytes != size
        }
        if columns:  # saved with another setting
            index = replace(index, columns=index.columns | columns)
        self._index_of_process = index
        return index

    def build(self, files: list[Path], progress: Progress) -> Index:
        with StoreReader(self.name) as reader:
            return self._build(self.list_stores(), reader, progress)

    def index_file(self, path: Path) -> Index:
        if self._reader is None:
            self._reader = StoreReader(self.name)
        self._index_of_process = self._build([path], self._reader, ignore_progress)
        return self._index_of_process

    def end_children(self) -> None:
        self._reader = None

    def _build(self, stores: list[Path], reader: StoreReader, progress: Progress) -> Index:
        require_extra(self.name, self.modules, f"reading {stores[0]}", DataError)
        contents = reader.read(stores, self.request, progress)
        return build_index(Stores(stores, contents), self.fields, int(self.chunk_cache), _is_image)

    # --- ChunkOrdered

    @property
    def is_ordered_by_chunks(self) -> bool:
        return self.order == "chunks"

    def chunk_order(self, index: Index) -> ChunkOrder | None:
        """Return the order of the samples, by the chunks of the first field.

        Raises:
            DataError: It has no chunks that samples share, or the cache cannot hold the buffer.
        """
        if self.order == "rows":
            return None
        column = index.columns[index.main]
        if not isinstance(column, ChunkColumn) or not column.shares_chunks:
            raise DataError(
                f"{index.location(0)}: data.order: chunks is for samples that share a chunk, and "
                "each of these is read alone: a full permutation costs nothing, so leave order out"
            )
        buffer = self.buffer or max(1, min(DEFAULT_BUFFER, self._count_fitting(index)))
        if fault := self.explain_large_chunks(index, buffer):
            raise DataError(fault)
        return ChunkOrder(column.number_chunks, buffer)

    def explain_large_chunks(self, index: Index, buffer: int, options: str = "data") -> str:
        """Return why `chunk_cache` cannot hold the chunks of a buffer, naming the largest, or "".

        Args:
            index: The samples.
            buffer: The number of chunks that are mixed.
            options: Where the options of this source are in the YAML, for the message.
        """
        fits = self._count_fitting(index)
        if buffer <= fits:
            return ""
        columns = _list_chunked(index)
        largest = max(columns, key=lambda column: column.max_row_of_chunks)
        bytes_of_chunk = sum(column.max_row_of_chunks for column in columns)
        needed = (buffer + _AHEAD) * bytes_of_chunk
        return (
            f"{index.location(largest.largest_row)}: {counted(buffer, 'chunk')} of "
            f"{bytes_of_chunk:,} bytes do not fit into {options}.chunk_cache with those that are "
            f"read ahead: set it to at least {-(-needed // 1_000_000)}MB"
            f"{f', or {options}.buffer to at most {fits}' if fits > 0 else ''}"
        )

    def _count_fitting(self, index: Index) -> int:
        """Return how many chunks `chunk_cache` holds beside those that are read ahead."""
        bytes_of_chunk = sum(column.max_row_of_chunks for column in _list_chunked(index))
        # A window has one chunk more than the buffer, and engines work some batches ahead.
        return int(self.chunk_cache) // max(bytes_of_chunk, 1) - _AHEAD


def _list_chunked(index: Index) -> list[ChunkColumn]:
    return [column for column in index.columns.values() if isinstance(column, ChunkColumn)]


DEFAULT_BUFFER = 64
"""How many chunks are mixed by default."""
_AHEAD = 8
"""The chunks beyond the buffer that are in use at one time."""


def _is_image(data: NDArray[np.uint8]) -> bool:
    return bool(read_header(data[:_HEADER_BYTES].tobytes()).format)
