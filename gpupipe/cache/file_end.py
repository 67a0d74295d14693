"""The end of a file in a store, from which a source finds out in which parts to fetch the file."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpupipe.cache.range_reader import FetchedRange
from gpupipe.cache.store import StoreError
from gpupipe.formats import DamagedError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_FIRST_READ = 1 << 16
_MAX_BYTES = 1 << 28


class FileEnd(io.RawIOBase):
    """A file in a store, to read. What is read, and all after it, is fetched and stays in memory.

    Args:
        size: Bytes of the file.
        read: Fetches the bytes `begin` to `end`, or all of the file.

    Attributes:
        size: Bytes of the file.
        begin: The first byte that is in memory. `size` if none is.
        data: The bytes from there on.
        has_ranges: Whether the server has sent no more than it was asked for.
    """

    def __init__(self, size: int, read: Callable[[int, int], FetchedRange]) -> None:
        self.size, self.begin, self.data = size, size, b""
        self.has_ranges = True
        self._read, self._at = read, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)
        end = min(self._at + len(view), self.size)
        if self._at >= end:
            return 0
        self._load(self._at)
        data = self.data[self._at - self.begin : end - self.begin]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _load(self, begin: int) -> None:
        """Fetch the bytes from `begin` on that are not in memory."""
        if begin >= self.begin:
            return
        if self.size - begin > _MAX_BYTES:
            raise DamagedError(f"its end would have {self.size - begin:,} bytes")
        begin = max(0, min(begin, self.size - _FIRST_READ))
        data, _ = self._read(begin, self.begin)
        if len(data) > self.begin - begin:
            begin, self.data, self.has_ranges = 0, b"", False
        self.data = bytes(data) + self.data
        if len(self.data) != self.size - begin:
            raise StoreError(f"{len(self.data):,} bytes came in place of {self.size - begin:,}")
        self.begin = begin
