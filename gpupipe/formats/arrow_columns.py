"""Open Arrow and Parquet files with pyarrow, and find the image files in their columns.

Arrow stores the bytes of a column contiguously, so images can be memory-mapped from an Arrow file
without a copy. This module never starts pyarrow's threads: they would still exist when a DataLoader
forks its workers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean
from gpupipe.formats import DamagedError

_FILE_MAGIC = b"ARROW1"
_BYTES = "bytes"
"""The struct field that holds the image file in Hugging Face data sets."""


class MappedBatch(NamedTuple):
    """A record batch of an Arrow file that is mapped into memory.

    Attributes:
        rows: The pyarrow.RecordBatch.
        address: The memory address of the file's first byte.
        size: The size of the file in bytes.
    """

    rows: Any
    address: int
    size: int


def iter_batches(path: Path) -> Iterator[MappedBatch]:
    """Yield the record batches of an Arrow file, in the stream or the file format.

    Raises:
        DamagedError: The file is truncated, damaged or not an Arrow file.
        OSError: The file cannot be read.
    """
    import pyarrow as pa

    size = path.stat().st_size
    if not size:
        raise DamagedError("0 bytes are no Arrow file")
    with pa.memory_map(str(path)) as file:
        address = file.read_buffer(1).address
        file.seek(0)
        is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        file.seek(0)
        try:
            if is_file:
                reader = pa.ipc.open_file(file)
                batches = map(reader.get_batch, range(reader.num_record_batches))
            else:
                batches = pa.ipc.open_stream(file)
            for rows in batches:
                rows.validate()
                yield MappedBatch(rows, address, size)
        except (pa.ArrowException, OSError) as e:
            raise DamagedError(f"no Arrow file that can be read: {str(e).splitlines()[0]}") from e


@contextmanager
def open_parquet(file: Path | BinaryIO | RawIOBase) -> Iterator[Any]:
    """Open a Parquet file, yield it as a pyarrow.ParquetFile, and close it.

    Pages that have a CRC-32 are compared with it when they are read.

    Raises:
        DamagedError: The file is truncated, damaged or not a Parquet file.
        OSError: The file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as table:
            yield table
    except (pa.ArrowException, OSError) as e:
        if isinstance(e, OSError) and e.errno:
            raise
        raise DamagedError(f"cannot be read as .parquet: {str(e).partition(chr(10))[0]}") from e


def iter_rows(
    table: Any, columns: list[str], rows_at_once: int, first_group: int = 0
) -> Iterator[Any]:
    """Yield the record batches of an open Parquet file, with up to `rows_at_once` rows each.

    No batch has rows of two row groups. The caller has checked these with
    `parquet_footer.check_row_group`. Messages number the row groups from `first_group` on.

    An OSError of pyarrow becomes a DamagedError. So a caller that writes the rows to a file can
    tell a failed read from a failed write.

    Raises:
        DamagedError: The rows cannot be read.
    """
    for number in range(table.num_row_groups):
        try:
            # pyarrow's threads would still exist when the DataLoader forks its workers.
            yield from table.iter_batches(rows_at_once, [number], columns, use_threads=False)
        except OSError as e:
            first_line = str(e).partition("\n")[0]
            shown = first_group + number
            raise DamagedError(f"row group {shown} cannot be read: {first_line}") from e


def read_schema(path: Path) -> Any:
    """Return the pyarrow.Schema of an Arrow file.

    Raises:
        DamagedError: The file is damaged or not an Arrow file, or holds no rows.
        OSError: The file cannot be read.
    """
    for batch in iter_batches(path):
        return batch.rows.schema
    raise DamagedError("it holds no rows")


def check_columns(schema: Any, names: list[str]) -> None:
    """Raise ValueError if the pyarrow schema lacks one of the columns `names`."""
    for name in names:
        if name not in schema.names:
            raise ValueError(f"has no column '{name}'{did_you_mean(name, schema.names)}")


def locate_images(batch: MappedBatch, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the image files of a column in the Arrow file.

    Returns:
        The byte offset of each of the N image files, int64 (N,), and its size in bytes, int64 (N,).

    Raises:
        DamagedError: An image file lies outside the Arrow file.
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
        raise DamagedError(f"the column '{column}' is not all in the file")
    return begin, length


def find_bytes(array: Any, column: str) -> Any:
    """Return the image files of a column as a pyarrow array of bytes.

    Args:
        array: The pyarrow array of the column: bytes, or structs with a field `bytes`.
        column: The name of the column, for messages.

    Raises:
        ValueError: The column does not hold image files, or a row has none.
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
