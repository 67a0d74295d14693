"""Split a large JSON file into the items of its arrays, without parsing the items.

    for block in iter_blocks(stream):
        if block.key == "annotations":
            numbers = decode(b"[" + block.data + b"]")

A JSON object whose members are long arrays, such as a COCO file, may have gigabytes. A parser that
returns all of it at once needs several times as much memory. This module reads the file in blocks
of some megabytes, and finds where items end by brackets, quotes and commas alone. The caller
decodes each block, and then knows whether the items are valid JSON.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError

_BLOCK_BYTES = 1 << 23
_MAX_ITEM_BYTES = 1 << 26
"""Maximum size of one item: it is held in memory."""
_MAX_SCALAR_BYTES = 1 << 20
"""Maximum size of a name of a member, or of a text or number beside the arrays."""
_BOM = b"\xef\xbb\xbf"
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*")
_TEXT = rb'"([^"\\]*(?:\\.[^"\\]*)*)"'
_KEY = re.compile(_TEXT + rb"[ \t\r\n]*:[ \t\r\n]*", re.DOTALL)
_SCALAR = re.compile(_TEXT + rb'|[^\[{\]},":\s]+', re.DOTALL)
_QUOTE, _COMMA = b'",'
_OPENING, _CLOSING = b"[{", b"]}"


_IS_STRUCTURE = bytes(chr(byte) in '"[]{},' for byte in range(256))
_DEPTH_STEP = bytes((byte in _OPENING) + 255 * (byte in _CLOSING) for byte in range(256))
"""1 for a bracket that opens, -1 as int8 for a bracket that closes, else 0."""


@dataclass(frozen=True)
class Block:
    """Consecutive items of one array.

    Attributes:
        key: The name of the array in the JSON object.
        first: The number of the first item in the array, from 0.
        data: The items with the commas between them, without a comma at the end.
        ends: The position of each item's end in `data`, int64 (n,): a comma, or the end. An empty
            array has one block with n = 0.
    """

    key: str
    first: int
    data: bytes
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def item(self, number: int) -> bytes:
        """Return the text of the item that is `first + number` in the array."""
        start = int(self.ends[number - 1]) + 1 if number else 0
        return self.data[start : int(self.ends[number])]


def iter_blocks(stream: BinaryIO, block_bytes: int = _BLOCK_BYTES) -> Iterator[Block]:
    """Yield the items of all arrays that are members of the JSON object in a file.

    Args:
        stream: The file, open for reading.
        block_bytes: How many bytes to read at once.

    Raises:
        DamagedError: The file is truncated, or no JSON object. Errors within items are not noticed.
        OSError: The file cannot be read.
    """
    return _Scanner(stream, block_bytes).scan()


class _Scanner:
    """Reads a file forward; `self._buffer` holds what was read and not yet passed on."""

    def __init__(self, stream: BinaryIO, block_bytes: int) -> None:
        self._stream, self._block_bytes = stream, block_bytes
        self._buffer = b""
        self._offset = 0
        """The position of the buffer's first byte in the file."""

    def scan(self) -> Iterator[Block]:
        while len(self._buffer) < len(_BOM) and self._fill():
            pass
        self._drop(len(_BOM) if self._buffer.startswith(_BOM) else 0)
        self._expect(b"{", "a JSON object begins with {")
        is_closed = self._skip_space() == b"}"
        if is_closed:
            self._drop(1)
        while not is_closed:
            key = self._take_key()
            if self._buffer[:1] in (b"[", b"{"):
                opened = self._buffer[:1]
                self._drop(1)
                for block in self._scan_container(key):
                    if opened == b"[":
                        yield block
            else:
                self._take_scalar(key)
            separator = self._skip_space()
            self._expect(b",}", "members of the object are separated by commas")
            is_closed = separator == b"}"
        if self._skip_space():
            raise DamagedError(f"no JSON object: it ends before byte {self._offset:,}")

    def _scan_container(self, key: str) -> Iterator[Block]:
        """Yield the items until the bracket that closes them. The buffer begins at an item."""
        first = 0
        while True:
            commas, closing = find_ends(self._buffer)
            if closing is not None:
                data = self._buffer[:closing]
                # An array without items yields one block without items.
                has_items = bool(first or data.strip())
                yield Block(key, first, data, np.append(commas, [closing] * has_items))
                return self._drop(closing + 1)
            if len(commas):
                end = int(commas[-1])
                yield Block(key, first, self._buffer[:end], commas)
                first += len(commas)
                self._drop(end + 1)
            elif len(self._buffer) > _MAX_ITEM_BYTES:
                raise DamagedError(
                    f"{key}[{first}] does not end within {_MAX_ITEM_BYTES:,} bytes (from byte "
                    f"{self._offset:,} on)"
                )
            if not self._fill():
                raise DamagedError(f"it ends in the middle of {key}[{first}]: the file is cut off")

    def _take_key(self) -> str:
        self._skip_space()
        match = self._match(_KEY)
        if match is None:
            raise DamagedError(f"no name of a member at byte {self._offset:,}: no JSON object")
        key = match[1].decode(errors="replace")
        self._drop(match.end())
        return key

    def _take_scalar(self, key: str) -> None:
        match = self._match(_SCALAR)
        if match is None:
            raise DamagedError(f"no value of '{key}' at byte {self._offset:,}: no JSON object")
        self._drop(match.end())

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Match at the buffer's start. Read on while the match may go on past the buffer."""
        while True:
            match = pattern.match(self._buffer)
            is_whole = match is not None and match.end() < len(self._buffer)
            if is_whole or len(self._buffer) > _MAX_SCALAR_BYTES or not self._fill():
                return match

    def _skip_space(self) -> bytes:
        """Drop white space, and return the byte after it; b"" at the end of the file."""
        while True:
            match = _SPACE.match(self._buffer)
            self._drop(match.end() if match else 0)
            if self._buffer or not self._fill():
                return self._buffer[:1]

    def _expect(self, allowed: bytes, rule: str) -> None:
        byte = self._skip_space()
        if not byte:
            raise DamagedError("it ends before the JSON object does: the file is cut off")
        if byte not in allowed:
            raise DamagedError(f"no JSON object: {rule}, but byte {self._offset:,} is {byte!r}")
        self._drop(1)

    def _fill(self) -> bool:
        """Append the next bytes of the file to the buffer; return whether there were any."""
        # A long item doubles the buffer, so that it is not scanned for every block.
        data = self._stream.read(max(self._block_bytes, len(self._buffer)))
        self._buffer += data
        return bool(data)

    def _drop(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._offset += count


def find_ends(data: bytes) -> tuple[NDArray[np.int64], int | None]:
    """Find where the items of an array end in a text that begins inside of the array.

    Returns:
        The positions of the commas between items, int64 (n,), and the position of the bracket that
        closes the array; None if it is not in `data`.
    """
    if b"\\" in data:
        data = _ESCAPED.sub(b"__", data)
    # bytes.translate is several times as fast as indexing a table with an array of uint8.
    positions = np.flatnonzero(np.frombuffer(data.translate(_IS_STRUCTURE), np.bool_))
    kinds = np.frombuffer(data, np.uint8)[positions]
    steps = np.frombuffer(kinds.tobytes().translate(_DEPTH_STEP), np.int8)
    is_outside = np.cumsum(kinds == _QUOTE, dtype=np.int32) % 2 == 0
    depth = np.cumsum(steps * is_outside, dtype=np.int32)
    closing = np.flatnonzero(depth < 0)[:1]
    is_comma = (kinds == _COMMA) & is_outside & (depth == 0)
    if not len(closing):
        return positions[is_comma], None
    return positions[: closing[0]][is_comma[: closing[0]]], int(positions[closing[0]])
