"""Reads and writes structures of Apache Thrift in the compact protocol, as Parquet's footers are.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from collections.abc import Iterable, Iterator

from gpupipe.formats import DamagedError

BINARY, LIST, SET, MAP, STRUCT = 8, 9, 10, 11, 12
INTEGERS = (4, 5, 6)
_TRUTHS = (1, 2)
_FIXED_BYTES = {1: 1, 2: 1, 3: 1, 7: 8, 13: 16}
"""Bytes of truth values in lists, small integers, floats, and UUIDs."""
_MAX_DEPTH = 32


class ThriftReader:
    """Reads a structure. The methods raise IndexError where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def iter_fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and kind of each field of a structure; the caller reads or skips it."""
        field = 0
        while True:
            head = self._data[self._at]
            self._at += 1
            if not head:
                return
            field = field + (head >> 4) if head >> 4 else self.read_integer()
            yield field, head & 15

    def iter_items(self, kind: int) -> Iterator[None]:
        """Yield for each item of a list, which the caller reads. Skip items of other kinds."""
        count, item_kind = self._read_list_head()
        for _ in range(count):
            if item_kind == kind:
                yield
            else:
                self._skip_item(item_kind)

    def read_integer(self) -> int:
        value = self._read_varint()
        return value >> 1 ^ -(value & 1)

    def read_bytes(self) -> bytes:
        count = self._check_count(self._read_varint())
        self._at += count
        return self._data[self._at - count : self._at]

    def skip(self, kind: int, depth: int = 0) -> bytes:
        """Skip a field, and return its bytes. The kind of a truth value says which it is."""
        begin = self._at
        if kind not in _TRUTHS:
            self._skip_item(kind, depth)
        return self._data[begin : self._at]

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
        byte = self._data[self._at]  # most numbers have one
        self._at += 1
        if byte < 0x80:
            return byte
        value, shift = byte & 0x7F, 7
        while (byte := self._read_byte()) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise DamagedError("its footer has a number of more than 64 bits")
        return value | byte << shift

    def _skip_item(self, kind: int, depth: int = 0) -> None:
        if kind in INTEGERS:
            self._read_varint()
        elif kind == BINARY:
            count = self._check_count(self._read_varint())
            self._at += count
        elif kind in _FIXED_BYTES:
            self._at += _FIXED_BYTES[kind]
        elif depth > _MAX_DEPTH:
            raise DamagedError("its footer has structures in structures without end")
        else:
            self._skip_container(kind, depth + 1)

    def _skip_container(self, kind: int, depth: int) -> None:
        if kind == STRUCT:
            for _, inner in self.iter_fields():
                if inner not in _TRUTHS:
                    self._skip_item(inner, depth)
        elif kind in (LIST, SET):
            count, item = self._read_list_head()
            for _ in range(count):
                self._skip_item(item, depth)
        elif kind == MAP:
            count = self._check_count(self._read_varint())
            kinds = self._read_byte() if count else 0
            for _ in range(count):
                self._skip_item(kinds >> 4, depth)
                self._skip_item(kinds & 15, depth)
        else:
            raise DamagedError(f"its footer has a field of kind {kind}, which there is not")


def pack_struct(fields: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return a structure of fields: number, kind, and bytes of each."""
    data, last = bytearray(), 0
    for field, kind, content in fields:
        is_short = 0 < field - last < 16
        data += bytes([field - last << 4 | kind]) if is_short else bytes([kind]) + pack(field)
        data += content
        last = field
    return bytes(data + b"\0")


def pack_structs(structs: list[bytes]) -> bytes:
    """Encode a list of encoded structures."""
    count = len(structs)
    head = bytes([count << 4 | STRUCT]) if count < 15 else bytes([0xF0 | STRUCT]) + _varint(count)
    return head + b"".join(structs)


def pack(number: int) -> bytes:
    """Return a number of 64 bits."""
    return _varint((number << 1 ^ number >> 63) & (1 << 64) - 1)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])
