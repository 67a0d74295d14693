"""Read columns of Arrow and Parquet files with pyarrow: image files, labels and numbers.

Arrow keeps the bytes of a column in one piece, so images in an Arrow file can be mapped where they
are. pyarrow's own threads are not used: they would still exist when a DataLoader forks its workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean
from gpupipe.formats import Damaged

_FILE_MAGIC = b"ARROW1"
_BYTES = "bytes"
"""The part of a struct that holds the image file, in the data sets of Hugging Face."""


class MappedBatch(NamedTuple):
    """Rows of an Arrow file that is mapped into memory.

    Attributes:
        rows: The pyarrow.RecordBatch.
        address: Where the file begins in memory.
        size: The size of the file in bytes.
    """

    rows: Any
    address: int
    size: int


def iter_batches(path: Path) -> Iterator[MappedBatch]:
    """Yield the record batches of an Arrow file, as `datasets` saves it: a stream, or a file.

    Raises:
        Damaged: The file is truncated, damaged or no Arrow file.
        OSError: The file cannot be read.
    """
    import pyarrow as pa

    size = path.stat().st_size
    if not size:
        raise Damaged("0 bytes are no Arrow file")
    with pa.memory_map(str(path)) as file:
        address = file.read_buffer(1).address
        file.seek(0)
        is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        file.seek(0)
        try:
            reader = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
            count = reader.num_record_batches if is_file else None
            number = 0
            while count is None or number < count:
                try:
                    rows = reader.get_batch(number) if is_file else reader.read_next_batch()
                except StopIteration:
                    return
                rows.validate()
                yield MappedBatch(rows, address, size)
                number += 1
        except (pa.ArrowException, OSError) as e:
            raise Damaged(f"no Arrow file that can be read: {str(e).splitlines()[0]}") from e


def read_schema(path: Path) -> Any:
    """Return the pyarrow.Schema of an Arrow file.

    Raises:
        Damaged: The file is no Arrow file.
        OSError: The file cannot be read.
    """
    for batch in iter_batches(path):
        return batch.rows.schema
    raise Damaged("it holds no rows")


def check_columns(schema: Any, names: list[str]) -> None:
    """Raise ValueError if a column is not there."""
    for name in names:
        if name not in schema.names:
            raise ValueError(f"has no column '{name}'{did_you_mean(name, schema.names)}")


def locate_images(batch: MappedBatch, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the image files of a column are in the file, and their sizes, int64 (N,).

    Raises:
        Damaged: They are not in the file.
        ValueError: The column holds no image files, or the file is compressed.
    """
    array = find_bytes(batch.rows.column(column), column)
    _, offsets, data = array.buffers()
    kind = np.int64 if str(array.type).startswith("large_") else np.int32
    count = len(array)
    if not count or offsets is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ends = np.frombuffer(offsets, kind)[array.offset : array.offset + count + 1].astype(np.int64)
    start = 0 if data is None else data.address - batch.address
    if not 0 <= start <= batch.size:
        raise ValueError("its columns are compressed: save them without compression")
    begin, length = start + ends[:-1], np.diff(ends)
    if len(ends) <= count or ends[0] < 0 or (length < 0).any() or start + ends[-1] > batch.size:
        raise Damaged(f"the column '{column}' is not all in the file")
    return begin, length


def find_bytes(array: Any, column: str) -> Any:
    """Return the array of bytes in a column: the column itself, or the part `bytes` of structs.

    Raises:
        ValueError: The column holds no image files, or not in every row.
    """
    import pyarrow as pa

    kind = array.type
    if pa.types.is_struct(kind) and kind.get_field_index(_BYTES) >= 0:
        paths = "path" if kind.get_field_index("path") >= 0 else ""
        inner = array.field(_BYTES)
        if array.null_count or inner.null_count:
            there = " but only a path" if paths and not array.null_count else ""
            raise ValueError(
                f"a row of the column '{column}' holds no image file{there}: write the files "
                "into the data set (save_to_disk and push_to_hub do)"
            )
        array = inner
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        raise ValueError(
            f"the column '{column}' holds {kind}, and no image files: see data.fields; a list of "
            "paths is 'source: file_list'"
        )
    if array.null_count:
        raise ValueError(f"a row of the column '{column}' holds no image file")
    return array


def read_labels(array: Any, column: str) -> list[str] | NDArray[np.int64]:
    """Return a column of labels: whole numbers, or names.

    Raises:
        ValueError: The column holds something else, or a row has no label.
    """
    import pyarrow as pa

    if array.null_count:
        raise ValueError(f"a row has no value in the column '{column}': fill it in")
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    if pa.types.is_integer(array.type):
        numbers: NDArray[np.int64] = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return [str(text) for text in array.to_pylist()]
    raise ValueError(
        f"the column '{column}' holds {array.type}, and no labels: set data.label to a column of "
        "whole numbers or names, or to null"
    )


def join_labels(parts: Sequence[Any]) -> list[str] | NDArray[np.int64]:
    """Return the labels of all parts, each as `read_labels` returned it."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [str(label) for part in parts for label in part]


def read_numbers(array: Any, column: str) -> NDArray[Any]:
    """Return a column of numbers, int64 or float64 (N,). Raises ValueError if it is none."""
    import pyarrow as pa

    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    is_whole = pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)
    if array.null_count or not (is_whole or pa.types.is_floating(array.type)):
        raise ValueError(
            f"the column '{column}' holds {array.type}, and not a number in each row: leave it "
            "out of data.values"
        )
    kind = pa.int64() if is_whole else pa.float64()
    numbers: NDArray[Any] = array.cast(kind).to_numpy(zero_copy_only=False)
    return numbers


def read_features(schema: Any) -> dict[str, Any]:
    """Return what `datasets` writes about the columns into the schema; {} if it did not."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def read_class_names(schema: Any, column: str) -> list[str]:
    """Return the names of the classes of a ClassLabel column; [] if it is none."""
    feature = read_features(schema).get(column)
    names = feature.get("names") if isinstance(feature, dict) else None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_list and names else []
