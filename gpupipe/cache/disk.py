"""File sizes in disk blocks, and unbuffered writes."""

from __future__ import annotations

import io

BLOCK = 4096
"""Bytes of a file system block: file sizes on disk are assumed to be multiples of it."""


def disk_size(size: int) -> int:
    """Return the bytes that a file of `size` bytes takes on disk."""
    return -(-size // BLOCK) * BLOCK


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file.

    Without a buffer, a full disk raises OSError here, and not when the file is closed.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
