"""The end of a file in a store, from which a source finds out which bytes of the file it needs."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpupipe.cache.shared_files import BLOCK
from gpupipe.cache.store import FetchedRange, StoreError
from gpupipe.formats import DamagedError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Ranges = list[tuple[int, int]]
"""Ranges [begin, end) of the bytes of a file, ascending, that do not touch."""
_FIRST_READ = 1 << 16
_MAX_BYTES = 1 << 28
_MAX_SHARE = 0.9
"""A file of which more is needed is fetched whole, so that its digest can be compared."""


class FileEnd(io.RawIOBase):
    """A file in a store, to read. What is read, and all after it, is fetched and stays in memory.

    Args:
        size: Bytes of the file.
        read: Fetches the bytes `begin` to `end`, or all of the file.

    Attributes:
        size: Bytes of the file.
        begin: The first byte that is in memory, a multiple of a disk block. `size` if none is.
        data: The bytes from there on.
        etags: The ETags of the file that the store told with these bytes; "" if it told none.
    """

    def __init__(self, size: int, read: Callable[[int, int], FetchedRange]) -> None:
        self.size, self.begin, self.data = size, size, b""
        self.etags: set[str] = set()
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

    def readinto(self, buffer: WriteableBuffer) -> int:
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
        begin = max(0, min(begin, self.size - _FIRST_READ)) // BLOCK * BLOCK
        data, etag = self._read(begin, self.begin)
        if len(data) > self.begin - begin:  # a server that knows no ranges has sent all of it
            begin, self.data = 0, b""
        self.data = bytes(data) + self.data
        if len(self.data) != self.size - begin:
            raise StoreError(f"{len(self.data):,} bytes came in place of {self.size - begin:,}")
        self.begin = begin
        self.etags.add(etag)

    def list_missing(self, needed: Sequence[tuple[int, int]], gap: int) -> Ranges:
        """Return which ranges to fetch so that all bytes of `needed` are there.

        They are whole disk blocks, and not in memory. They are all of the rest of the file if that
        is not much more.

        Args:
            needed: Ranges [begin, end), in any order.
            gap: Bytes between two ranges that are fetched as well, to save a request.
        """
        missing: Ranges = []
        for first, last in sorted(needed):
            begin, end = max(first, 0) // BLOCK * BLOCK, min(-(-last // BLOCK) * BLOCK, self.begin)
            if begin >= end:
                continue
            if missing and begin - missing[-1][1] <= gap:
                missing[-1] = missing[-1][0], max(missing[-1][1], end)
            else:
                missing.append((begin, end))
        fetched = sum(end - begin for begin, end in missing) + self.size - self.begin
        if fetched <= _MAX_SHARE * self.size:
            return missing
        return [(0, self.begin)] if self.begin else []
