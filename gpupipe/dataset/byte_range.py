"""Where the bytes of a sample are: a file, or a part of one."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def missing(path: str, lacking: int) -> str:
    """What a message says of a file that ends too early."""
    return f"{path} ends {lacking:,} bytes before the sample does: it changed since it was indexed"


class Span(NamedTuple):
    """`length` bytes from `offset` on in the file at `path`; all of it where length is None."""

    path: str
    offset: int = 0
    length: int | None = None

    def read(self) -> NDArray[np.uint8]:
        """The bytes, uint8 (bytes,).

        Raises OSError, and ValueError where the file ends before they do.
        """
        if self.length is None:
            return np.fromfile(self.path, np.uint8)
        data = np.empty(self.length, np.uint8)
        with open(self.path, "rb", buffering=0) as f:
            f.seek(self.offset)
            found = f.readinto(data.data) or 0
        if found < self.length:
            raise ValueError(missing(self.path, self.length - found))
        return data

    def ends(self, head: int, tail: int) -> tuple[bytes, bytes, int]:
        """The first `head` bytes, the last `tail`, and the size. Raises OSError."""
        with open(self.path, "rb") as f:
            size = max(0, f.seek(0, os.SEEK_END) - self.offset)
            size = size if self.length is None else min(size, self.length)
            f.seek(self.offset)
            first = f.read(min(head, size))
            f.seek(self.offset + max(0, size - tail))
            return first, f.read(min(tail, size)), size
