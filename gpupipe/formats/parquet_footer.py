"""Where the columns of a Parquet file are, and how large, as its footer declares.

pyarrow 26 tells it, too. But what tells it of a column throws a C++ exception at some damage, which
its Python classes do not catch, and which ends the process. Opening a file and reading its rows do
not. The footer is a Thrift structure:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from io import RawIOBase
from typing import Any, BinaryIO, NamedTuple

from gpupipe.formats import DamagedError, check_size
from gpupipe.formats.thrift_compact import (
    BINARY,
    INTEGERS,
    LIST,
    STRUCT,
    ThriftReader,
    pack,
    pack_struct,
    pack_structs,
)

MAGIC = b"PAR1"
_TAIL = 8
"""Bytes after the footer: its length, little-endian in 4 bytes, and PAR1."""
_ALL_ROWS, _ROW_GROUPS = 3, 4
"""Fields of the file."""
_COLUMNS, _ROWS = 1, 3
"""Fields of a row group."""
_PATH, _INFLATED, _STORED, _DATA, _DICTIONARY = 3, 6, 7, 9, 11
"""Fields of the description of a column."""
_Fields = Sequence[tuple[int, int, Any]]
"""Number, kind and value of the fields of a structure: bytes, an offset, other _Fields, or a list
of these.
"""


class _Kind(NamedTuple):
    """What to do with the fields of a structure, by their numbers.

    Attributes:
        inner: Those that are structures, or lists of them, with what to do with theirs.
        offsets: Those that are places in the file.
        left_out: Those that a footer for a part of the file lacks, as they can be left out. They
            are places of indexes at the end of the file, and the number of a row group.
    """

    inner: Mapping[int, "_Kind"] = {}
    offsets: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()


_DESCRIPTION = _Kind(offsets=(_DATA, 10, _DICTIONARY), left_out=(14, 15))
_COLUMN = _Kind({3: _DESCRIPTION}, offsets=(2,), left_out=(4, 5, 6, 7))
_ROW_GROUP = _Kind({_COLUMNS: _COLUMN}, offsets=(5,), left_out=(7,))
_FILE = _Kind({_ROW_GROUPS: _ROW_GROUP})


class ColumnChunk(NamedTuple):
    """The values of a column in a row group.

    Attributes:
        column: The name of the column. Each part of a struct or list is a chunk of its own.
        begin: Its first byte in the file.
        end: The byte after it.
        inflated: How many bytes it has, once inflated.
    """

    column: str
    begin: int
    end: int
    inflated: int


class RowGroup(NamedTuple):
    """A row group.

    Attributes:
        rows: The number of its rows.
        chunks: Its columns.
        fields: All that the footer says of it.
    """

    rows: int
    chunks: list[ColumnChunk]
    fields: _Fields = ()


class Footer(NamedTuple):
    """The footer of a file.

    Attributes:
        groups: The row groups.
        fields: All that it says.
    """

    groups: list[RowGroup]
    fields: _Fields

    def pack(self, groups: Sequence[RowGroup], shift: int) -> bytes:
        """Return the end of a file that has some of the row groups, from its footer on.

        Args:
            groups: The row groups.
            shift: How many bytes nearer to the beginning they are than in this file.
        """
        parts = pack_structs([_pack(group.fields, _ROW_GROUP, shift) for group in groups])
        changed = {_ALL_ROWS: pack(sum(group.rows for group in groups)), _ROW_GROUPS: parts}
        footer = pack_struct((n, kind, changed.get(n) or value) for n, kind, value in self.fields)
        return footer + len(footer).to_bytes(4, "little") + MAGIC


def read_footer(file: BinaryIO | RawIOBase) -> Footer:
    """Return the footer of a Parquet file that pyarrow could open.

    Raises:
        DamagedError: It is damaged.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    length = int.from_bytes((file.read(_TAIL) or b"")[:4], "little")
    if length > size - _TAIL:
        raise DamagedError(f"a footer of {length:,} bytes in a file of {size:,}")
    file.seek(size - _TAIL - length)
    try:
        fields = _read(ThriftReader(file.read(length) or b""), _FILE)
        every = [value for n, kind, value in fields if (n, kind) == (_ROW_GROUPS, LIST)]
        return Footer([_describe_group(group) for groups in every for group in groups], fields)
    except IndexError as e:
        raise DamagedError("its footer is cut off") from e


def read_row_groups(file: BinaryIO | RawIOBase) -> list[RowGroup]:
    """Return the row groups of a Parquet file; see `read_footer`."""
    return read_footer(file).groups


def check_row_group(group: RowGroup, number: int, columns: Collection[str], max_bytes: int) -> None:
    """Raise ValueError if a column has more bytes than its rows may have, before it is inflated.

    Args:
        group: A row group of a file.
        number: Its number, for the message.
        columns: The columns with images.
        max_bytes: The maximum size of an image in bytes; 0 for no limit.
    """
    for chunk in group.chunks:
        if chunk.column in columns:
            mean = chunk.inflated // max(1, group.rows)
            check_size(mean, max_bytes, f"row group {number}: on average ")


def _read(reader: ThriftReader, kind: _Kind) -> _Fields:
    """Read a structure."""
    fields: list[tuple[int, int, Any]] = []
    for number, coded_as in reader.iter_fields():
        value: Any
        if number in kind.inner and coded_as == STRUCT:
            value = _read(reader, kind.inner[number])
        elif number in kind.inner and coded_as == LIST:
            value = [_read(reader, kind.inner[number]) for _ in reader.iter_items(STRUCT)]
        elif number in kind.offsets and coded_as in INTEGERS:
            value = reader.read_integer()
        else:
            value = reader.skip(coded_as)
        if number not in kind.left_out:
            fields.append((number, coded_as, value))
    return fields


def _pack(fields: _Fields, kind: _Kind, shift: int) -> bytes:
    """Return the bytes of a structure, with all places nearer to the beginning by `shift`."""

    def pack_value(number: int, coded_as: int, value: Any) -> bytes:
        if isinstance(value, int):
            return pack(value - shift if value > 0 else value)  # 0 is no place
        if isinstance(value, bytes):
            return value
        inner = kind.inner[number]
        if coded_as == STRUCT:
            return _pack(value, inner, shift)
        return pack_structs([_pack(one, inner, shift) for one in value])

    return pack_struct((n, coded_as, pack_value(n, coded_as, v)) for n, coded_as, v in fields)


def _describe_group(fields: _Fields) -> RowGroup:
    rows, chunks = 0, list[ColumnChunk]()
    for number, coded_as, value in fields:
        if number == _ROWS and coded_as in INTEGERS:
            rows = _decode(value)
        elif (number, coded_as) == (_COLUMNS, LIST):
            chunks += [
                _describe_chunk(description)
                for column in value
                for n, kind, description in column
                if (n, kind) == (3, STRUCT)
            ]
    return RowGroup(rows, chunks, fields)


def _describe_chunk(fields: _Fields) -> ColumnChunk:
    numbers, name = dict.fromkeys((_INFLATED, _STORED, _DATA, _DICTIONARY), 0), ""
    for n, coded_as, value in fields:
        if n in numbers and coded_as in INTEGERS:
            numbers[n] = _decode(value)
        elif (n, coded_as) == (_PATH, LIST):
            reader = ThriftReader(value)
            names = [reader.read_bytes() for _ in reader.iter_items(BINARY)]
            name = names[0].decode(errors="replace") if names else ""
    # The dictionary, if there is one, comes first. Some writers give 0 as its place if not.
    begin = min(numbers[_DATA], numbers[_DICTIONARY] or numbers[_DATA])
    return ColumnChunk(name, begin, begin + numbers[_STORED], numbers[_INFLATED])


def _decode(value: int | bytes) -> int:
    return value if isinstance(value, int) else ThriftReader(value).read_integer()
