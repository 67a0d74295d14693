"""Reads samples of a data set as they are stored in shards: bytes, arrays, labels and numbers."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.conversion.plan import LABEL, StoragePlan, StoredField
from gpupipe.conversion.reduction import Reduced, reduce_image, reduce_mask
from gpupipe.dataset.annotation_columns import offsets_of
from gpupipe.dataset.columns import as_array, read_bytes, read_rows
from gpupipe.dataset.index import Index
from gpupipe.dataset.list_columns import VISIBILITY
from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError, Header
from gpupipe.engines.bad_samples import describe_ends, explain_image_failure
from gpupipe.errors import describe_error
from gpupipe.runtime.failures import machine_errors

_ROWS_AT_ONCE = 16
_TAIL_BYTES = 64
_ENDINGS = {"JPEG": "jpg", "TIFF": "tif", "JPEG 2000": "jp2", "JPEG XL": "jxl"}


class Content(NamedTuple):
    """The bytes of a field of one sample.

    Attributes:
        kind: The ending for the format of an image file, such as jpg; npy for an array.
        data: The bytes of the file; of an array, with its header.
        numbers: How many of the last bytes are the numbers of an array; all bytes of a file.
    """

    kind: str
    data: bytes | memoryview
    numbers: int


class ConvertedSample(NamedTuple):
    """One sample.

    Attributes:
        row: Its row in the index.
        contents: The bytes of each field, by name.
        label: Its label; None if samples have none.
        values: The numbers of each value, by name.
        lists: The list of each field of annotations, by name.
        source_bytes: How many bytes its fields have in the source.
        changes: How many of its files are "reduced" or "decoded", or "kept" though they are larger
            than the longest side, because a JPEG cannot hold them.
    """

    row: int
    contents: dict[str, Content]
    label: int | None
    values: dict[str, Any]
    lists: dict[str, list[Any]]
    source_bytes: int
    changes: dict[str, int]


class BadSample(NamedTuple):
    """A sample that cannot be stored: its row, its place, and the reason in one line."""

    row: int
    path: str
    reason: str


class _UnusableError(Exception):
    """A sample cannot be stored; the message says why."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        super().__init__(reason)


@dataclass(frozen=True)
class ConvertedReader:
    """Reads samples. Its methods run on several threads at once.

    Attributes:
        plan: How the samples are stored.
        index: The samples.
        chain: Decodes images.
    """

    plan: StoragePlan
    index: Index
    chain: DecoderChain

    def read(self, rows: range) -> Iterator[ConvertedSample | BadSample]:
        """Yield the samples of some rows, in order.

        Raises:
            EngineError: The machine, or a plugin, is to blame.
        """
        names = [*(field.name for field in self.plan.fields)]
        if LABEL in self.index.columns:
            names.append(LABEL)
        for first in range(rows.start, rows.stop, _ROWS_AT_ONCE):
            chunk = range(first, min(first + _ROWS_AT_ONCE, rows.stop))
            columns = {name: self._read_column(name, chunk) for name in names}
            for n, row in enumerate(chunk):
                try:
                    yield self._make(row, {name: part[n] for name, part in columns.items()})
                except _UnusableError as e:
                    yield BadSample(row, self.index.location(row, e.field), str(e))

    def _read_column(self, name: str, rows: range) -> list[NDArray[np.uint8] | str]:
        """Return the bytes of each row; in place of bytes, why they cannot be read."""
        column = self.index.columns[name]
        with machine_errors():
            try:
                return [*read_rows(column, np.array(rows))]
            except (OSError, ValueError):
                pass
        found: list[NDArray[np.uint8] | str] = []
        for row in rows:  # alone, to find the one at fault
            try:
                with machine_errors():
                    found.append(read_bytes(column, row))
            except (OSError, ValueError) as e:
                found.append(describe_error(e))
        return found

    def _make(self, row: int, parts: Mapping[str, NDArray[np.uint8] | str]) -> ConvertedSample:
        """Return a sample. Raises _UnusableError if it cannot be stored."""
        if reason := self.index.faults.explain(row):
            raise _UnusableError(self.index.main, reason)
        contents: dict[str, Content] = {}
        scales: dict[str, tuple[float, float]] = {}
        changes: dict[str, int] = {}
        for field in self.plan.fields:
            data = self._check_bytes(field.name, parts)
            if field.layout is not None:
                contents[field.name] = self._store_array(field, row, data)
                continue
            header = self._check_image(field, row, data)
            contents[field.name], reduced = self._store_image(field, row, data, header)
            if isinstance(reduced, Reduced):
                scales[field.name] = reduced.scale
            change = reduced if isinstance(reduced, str) else "reduced"
            if change:
                changes[change] = changes.get(change, 0) + 1
        return ConvertedSample(
            row,
            contents,
            self._find_label(row, parts),
            {name: self.index.values[name][row].tolist() for name in self.plan.values},
            {name: self._list_items(name, row, scales) for name in self.plan.lists},
            sum(len(part) for part in parts.values()),
            changes,
        )

    def _check_bytes(
        self, name: str, parts: Mapping[str, NDArray[np.uint8] | str]
    ) -> NDArray[np.uint8]:
        data = parts[name]
        if isinstance(data, str):
            raise _UnusableError(name, data)
        return data

    def _store_array(self, field: StoredField, row: int, data: NDArray[np.uint8]) -> Content:
        assert field.layout is not None
        try:
            return encode_npy(as_array(data, field.layout, row))
        except ValueError as e:
            raise _UnusableError(field.name, str(e)) from e

    def _check_image(self, field: StoredField, row: int, data: NDArray[np.uint8]) -> Header:
        """Return the header of an image; decode it if its ends look damaged."""
        column = self.index.columns[field.name]
        try:
            header = self.chain.find(data)[2]
            tail = data[max(0, len(data) - _TAIL_BYTES) :].tobytes()
            if describe_ends(data[:_TAIL_BYTES].tobytes(), tail, len(data)):
                with machine_errors():
                    self.chain.decode(data, field.decode or DecodeOptions())
        except CannotDecodeError as e:
            reason = explain_image_failure(column, row, str(e))
            raise _UnusableError(field.name, reason) from e
        declared = self.index.sizes.get(field.name)
        if declared is not None and header.height and header.width:
            height, width = declared[row].tolist()
            if height and (height, width) != (header.height, header.width):
                raise _UnusableError(
                    field.name,
                    f"its annotations are of an image of {width}x{height} pixels (width x height), "
                    f"but the file has {header.width}x{header.height}",
                )
        return header

    def _store_image(
        self, field: StoredField, row: int, data: NDArray[np.uint8], header: Header
    ) -> tuple[Content, Reduced | str]:
        """Return what is stored of an image, and what changed: "" for nothing."""
        options = self.plan.options
        try:
            with machine_errors():
                if field.decode is not None:
                    pixels = self.chain.decode(data, field.decode)
                    return encode_npy(pixels.transpose(2, 0, 1)), "decoded"
                if options.max_side is not None:
                    reduced = (
                        reduce_mask(data, options.max_side)
                        if field.is_mask
                        else reduce_image(
                            self.chain, data, header, options.max_side, options.quality
                        )
                    )
                    if isinstance(reduced, Reduced):
                        return Content(reduced.kind, reduced.data, len(reduced.data)), reduced
                    return _copy(data, header), reduced
        except CannotDecodeError as e:
            reason = explain_image_failure(self.index.columns[field.name], row, str(e))
            raise _UnusableError(field.name, reason) from e
        return _copy(data, header), ""

    def _find_label(self, row: int, parts: Mapping[str, NDArray[np.uint8] | str]) -> int | None:
        if not self.plan.has_label:
            return None
        if LABEL not in parts:
            return int(self.index.labels[row])
        layout = self.index.columns[LABEL].array
        assert layout is not None
        return int(as_array(self._check_bytes(LABEL, parts), layout, row))

    def _list_items(
        self, name: str, row: int, scales: Mapping[str, tuple[float, float]]
    ) -> list[Any]:
        """Return the items of a list; coordinates fit the stored image."""
        columns = self.index.annotations
        column = columns[name]
        first, end = offsets_of(columns, name)[row : row + 2].tolist()
        items = column.values[first:end]
        if column.kind == "array":
            dtype = self.plan.lists[name].find_dtype(name)
            numbers: list[Any] = items.astype(dtype).tolist()
            return numbers
        if column.of in scales and not column.is_normalized:
            items = items.astype(np.float64) * np.tile(scales[column.of], items.shape[-1] // 2)
        items = items.astype(np.float32).astype(np.float64)
        if column.kind == "points":
            if self.plan.lists[name].has_visibility:
                seen = columns[VISIBILITY].values[first:end]
                items = np.concatenate([items, seen[..., None]], -1)
            items = items.reshape(len(items), items.shape[1] * items.shape[2])
        coordinates: list[Any] = items.tolist()
        return coordinates


def _copy(data: NDArray[np.uint8], header: Header) -> Content:
    kind = _ENDINGS.get(header.format) or header.format.lower()
    return Content(kind, data.data, len(data))


def encode_npy(array: NDArray[Any]) -> Content:
    """Return an array as the bytes of a .npy file, in C order."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array), (1, 0), allow_pickle=False)
    return Content("npy", file.getbuffer(), array.nbytes)
