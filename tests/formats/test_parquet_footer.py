"""What a Parquet footer declares of its columns, as pyarrow reads it too."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from gpupipe.formats import DamagedError
from gpupipe.formats.parquet_footer import (
    MAGIC,
    ColumnChunk,
    RowGroup,
    check_row_group,
    read_footer,
    read_row_groups,
)

COLUMNS = {
    "image": [{"bytes": bytes([n]) * 900, "path": f"{n}.png"} for n in range(40)],
    "größe": [n / 3 for n in range(40)],
    "boxes": [[[1.0, 2.0]] * n for n in range(40)],
    "is_cat": [n % 2 == 0 for n in range(40)],
    "tags": [{"a.b": [str(n)]} for n in range(40)],
    **{f"c{n}": list(range(40)) for n in range(20)},
}


def written(**options: Any) -> io.BytesIO:
    file = io.BytesIO()
    table = pa.table(COLUMNS).replace_schema_metadata({"huggingface": "x" * 300})
    pa.parquet.write_table(table, file, row_group_size=16, **options)
    return file


@pytest.mark.parametrize(
    "options",
    [
        {"write_page_index": True, "write_page_checksum": True, "compression": "zstd"},
        {"use_dictionary": False, "version": "1.0", "compression": "none"},
        {"sorting_columns": [pa.parquet.SortingColumn(2)], "data_page_version": "2.0"},
    ],
    ids=str,
)
def test_columns_are_where_pyarrow_finds_them(options: dict[str, Any]) -> None:
    file = written(**options)
    groups, metadata = read_row_groups(file), pa.parquet.read_metadata(file)
    assert [group.rows for group in groups] == [16, 16, 8]
    for number, group in enumerate(groups):
        columns = metadata.row_group(number)
        assert len(group.chunks) == columns.num_columns > 25
        for n, chunk in enumerate(group.chunks):
            column = columns.column(n)
            assert chunk.column == column.path_in_schema.partition(".")[0]
            places = [column.data_page_offset, column.dictionary_page_offset]
            assert chunk.begin == min(place for place in places if place is not None)
            assert chunk.end - chunk.begin == column.total_compressed_size
            assert chunk.inflated == column.total_uncompressed_size


def test_a_footer_of_some_row_groups_is_that_of_a_file_of_its_own() -> None:
    file = written(write_page_index=True, use_dictionary=False)
    whole, footer = file.getvalue(), read_footer(file)
    for chosen in (slice(1, 3), slice(0, 1), slice(0, 3)):
        groups = footer.groups[chosen]
        begin = min(chunk.begin for group in groups for chunk in group.chunks)
        end = max(chunk.end for group in groups for chunk in group.chunks)
        content = MAGIC + whole[begin:end] + footer.pack(groups, begin - len(MAGIC))
        with pa.parquet.ParquetFile(io.BytesIO(content)) as part:
            rows = slice(16 * chosen.start, 16 * chosen.stop)
            assert part.read().to_pylist() == pa.table(COLUMNS).to_pylist()[rows]
            assert part.schema_arrow.metadata[b"huggingface"] == b"x" * 300
            assert part.metadata.num_row_groups == len(groups)
            assert part.metadata.num_rows == sum(group.rows for group in groups)
            assert not part.metadata.row_group(0).column(0).has_offset_index
        assert [g.rows for g in read_row_groups(io.BytesIO(content))] == [g.rows for g in groups]
    assert pa.parquet.read_metadata(file).row_group(0).column(0).has_offset_index


def test_a_damaged_footer_is_a_result_or_an_error() -> None:
    whole = written().getvalue()
    length = int.from_bytes(whole[-8:-4], "little")
    draw = np.random.default_rng(0)
    errors = 0
    for _ in range(300):
        footer = bytearray(whole[-8 - length : -8])
        for at in draw.integers(0, length, draw.integers(1, 5)):
            footer[at] = draw.integers(0, 256)
        footer = footer[: draw.integers(0, 2 * length)]
        file = io.BytesIO(footer + len(footer).to_bytes(4, "little") + b"PAR1")
        try:
            read = read_footer(file)
            read.pack(read.groups, 4)
        except DamagedError:
            errors += 1
    assert errors > 100


def test_a_footer_is_no_longer_than_its_file() -> None:
    with pytest.raises(DamagedError, match="a footer of 999 bytes in a file of 12"):
        read_row_groups(io.BytesIO(b"PAR1" + (999).to_bytes(4, "little") + b"PAR1"))


def test_a_row_group_that_inflates_too_much_is_named() -> None:
    group = RowGroup(4, [ColumnChunk("image", 0, 1, 400)])
    check_row_group(group, 7, ["image"], 100)
    check_row_group(group, 7, ["label"], 10)
    with pytest.raises(ValueError, match="row group 7: on average "):
        check_row_group(group, 7, ["image"], 99)
