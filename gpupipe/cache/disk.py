"""File sizes in disk blocks, unbuffered writes, and atomic replacement of files."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

BLOCK = 4096
"""Bytes of a file system block: file sizes on disk are assumed to be multiples of it."""


def on_disk(size: int) -> int:
    """Return the bytes that a file of `size` bytes takes on disk."""
    return -(-size // BLOCK) * BLOCK


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file.

    Without a buffer, a full disk raises OSError here, and not when the file is closed.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    """Create or replace the file at `path` atomically.

    Args:
        path: The file.
        write: Called with a temporary path beside `path`, to which it writes the file.
    """
    temporary = path.with_name(f"{path.name}.making")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
