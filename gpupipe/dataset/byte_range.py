"""Where the bytes of a sample are: a file, or a part of one."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def missing(path: str, lacking: int) -> str:
    """The message for a file that ends `lacking` bytes too early."""
    return f"{path} ends {lacking:,} bytes before the sample does: it changed since it was indexed"


class Span(NamedTuple):
    """A byte range of a file.

    Attributes:
        path: The file.
        offset: The first byte.
        length: Number of bytes; None means the whole file.
    """

    path: str
    offset: int = 0
    length: int | None = None

    def read(self) -> NDArray[np.uint8]:
        """Read the bytes, uint8 (length,).

        Raises:
            OSError: The file cannot be read.
            ValueError: The file ends before the range does.
        """
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            length = os.fstat(file).st_size if self.length is None else self.length
            data = np.empty(length, np.uint8)
            received = _read_into(data, file, self.offset)
        except OSError as e:
            raise OSError(e.errno, e.strerror, self.path) from None
        finally:
            os.close(file)
        if received < length and self.length is not None:
            raise ValueError(missing(self.path, length - received))
        return data[:received]

    def read_ends(self, head: int, tail: int) -> tuple[bytes, bytes, int]:
        """Return the first `head` bytes, the last `tail` bytes, and the size in bytes.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file ends before the range does.
        """
        with open(self.path, "rb") as f:
            size = max(0, f.seek(0, os.SEEK_END) - self.offset)
            if self.length is not None and size < self.length:
                raise ValueError(missing(self.path, self.length - size))
            size = size if self.length is None else self.length
            f.seek(self.offset)
            first = f.read(min(head, size))
            f.seek(self.offset + max(0, size - tail))
            return first, f.read(min(tail, size)), size


def _read_into(data: NDArray[np.uint8], file: int, offset: int) -> int:
    """Fill `data` with the bytes of an open file from `offset` on. Returns how many there were."""
    received = 0
    while received < len(data):
        count = os.preadv(file, [data[received:]], offset + received)
        if not count:
            break
        received += count
    return received
