"""Where the columns of a Parquet file are, and how large, as its footer declares.

pyarrow 26 tells it, too. But what tells it of a column throws a C++ exception at some damage, which
its Python classes do not catch, and which ends the process. Opening a file and reading its rows do
not. The footer is a Thrift structure in the compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, and
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

import os
from collections.abc import Collection, Iterator
from io import RawIOBase
from typing import BinaryIO, NamedTuple

from gpupipe.formats import DamagedError, check_size

_TAIL = 8
"""Bytes after the footer: its length, little-endian in 4 bytes, and PAR1."""
_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12
_TRUTHS, _INTEGERS = (1, 2), (4, 5, 6)
_FIXED_BYTES = {1: 1, 2: 1, 3: 1, 7: 8, 13: 16}
"""Bytes of truth values in lists, small integers, floats, and UUIDs."""
_MAX_DEPTH = 32
_ROW_GROUPS, _COLUMNS, _ROWS, _COLUMN = 4, 1, 3, 3
"""Fields of the file, of a row group (its columns and rows), and of a column in it."""
_PATH, _INFLATED, _STORED, _DATA, _DICTIONARY = 3, 6, 7, 9, 11
"""Fields of the description of a column."""


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
    """A row group: the number of its rows, and its columns."""

    rows: int
    chunks: list[ColumnChunk]


def read_row_groups(file: BinaryIO | RawIOBase) -> list[RowGroup]:
    """Return the row groups of a Parquet file, which pyarrow has opened without an error.

    Raises:
        DamagedError: The footer is damaged.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    length = int.from_bytes((file.read(_TAIL) or b"")[:4], "little")
    if length > size - _TAIL:
        raise DamagedError(f"a footer of {length:,} bytes in a file of {size:,}")
    file.seek(size - _TAIL - length)
    try:
        return list(_Footer(file.read(length) or b"").iter_row_groups())
    except IndexError as e:
        raise DamagedError("its footer is cut off") from e


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


class _Footer:
    """Reads a footer. Its methods raise IndexError where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def iter_row_groups(self) -> Iterator[RowGroup]:
        for field, kind in self._iter_fields():
            if (field, kind) == (_ROW_GROUPS, _LIST):
                for _ in self._iter_items(_STRUCT):
                    yield self._read_row_group()
            else:
                self._skip(kind)

    def _read_row_group(self) -> RowGroup:
        rows, chunks = 0, []
        for field, kind in self._iter_fields():
            if (field, kind) == (_COLUMNS, _LIST):
                chunks += [self._read_column() for _ in self._iter_items(_STRUCT)]
            elif field == _ROWS and kind in _INTEGERS:
                rows = self._read_integer()
            else:
                self._skip(kind)
        return RowGroup(rows, [chunk for chunk in chunks if chunk is not None])

    def _read_column(self) -> ColumnChunk | None:
        chunk = None
        for field, kind in self._iter_fields():
            if (field, kind) == (_COLUMN, _STRUCT):
                chunk = self._read_chunk()
            else:
                self._skip(kind)
        return chunk

    def _read_chunk(self) -> ColumnChunk:
        numbers, path = dict.fromkeys((_INFLATED, _STORED, _DATA, _DICTIONARY), 0), [b""]
        for field, kind in self._iter_fields():
            if field in numbers and kind in _INTEGERS:
                numbers[field] = self._read_integer()
            elif (field, kind) == (_PATH, _LIST):
                path = [self._read_bytes() for _ in self._iter_items(_BINARY)] or path
            else:
                self._skip(kind)
        # The dictionary, if there is one, comes first. Some writers give 0 as its place if not.
        begin = min(numbers[_DATA], numbers[_DICTIONARY] or numbers[_DATA])
        name = path[0].decode(errors="replace")
        return ColumnChunk(name, begin, begin + numbers[_STORED], numbers[_INFLATED])

    def _iter_fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and kind of each field of a structure; the caller reads or skips it."""
        field = 0
        while head := self._read_byte():
            field = field + (head >> 4) if head >> 4 else self._read_integer()
            yield field, head & 15

    def _iter_items(self, kind: int) -> Iterator[None]:
        """Yield for each item of a list, which the caller reads. Skip items of other kinds."""
        count, item_kind = self._read_list_head()
        for _ in range(count):
            if item_kind == kind:
                yield
            else:
                self._skip_item(item_kind)

    def _read_list_head(self) -> tuple[int, int]:
        head = self._read_byte()
        return self._check_count(head >> 4 if head >> 4 < 15 else self._read_varint()), head & 15

    def _check_count(self, count: int) -> int:
        if count > len(self._data) - self._at:  # every item has a byte at least
            raise IndexError
        return count

    def _read_byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _read_varint(self) -> int:
        value = shift = 0
        while (byte := self._read_byte()) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise DamagedError("its footer has a number of more than 64 bits")
        return value | byte << shift

    def _read_integer(self) -> int:
        value = self._read_varint()
        return value >> 1 ^ -(value & 1)

    def _read_bytes(self) -> bytes:
        count = self._check_count(self._read_varint())
        self._at += count
        return self._data[self._at - count : self._at]

    def _skip(self, kind: int, depth: int = 0) -> None:
        """Skip a field. The kind of a truth value says which it is."""
        if kind not in _TRUTHS:
            self._skip_item(kind, depth)

    def _skip_item(self, kind: int, depth: int = 0) -> None:
        if kind in _FIXED_BYTES:
            self._at += _FIXED_BYTES[kind]
        elif kind in _INTEGERS:
            self._read_varint()
        elif kind == _BINARY:
            self._read_bytes()
        elif depth > _MAX_DEPTH:
            raise DamagedError("its footer has structures in structures without end")
        else:
            self._skip_container(kind, depth + 1)

    def _skip_container(self, kind: int, depth: int) -> None:
        if kind == _STRUCT:
            for _, inner in self._iter_fields():
                self._skip(inner, depth)
        elif kind in (_LIST, _SET):
            count, item = self._read_list_head()
            for _ in range(count):
                self._skip_item(item, depth)
        elif kind == _MAP:
            count = self._check_count(self._read_varint())
            kinds = self._read_byte() if count else 0
            for _ in range(count):
                self._skip_item(kinds >> 4, depth)
                self._skip_item(kinds & 15, depth)
        else:
            raise DamagedError(f"its footer has a field of kind {kind}, which there is not")
