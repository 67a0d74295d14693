"""Files as the disk sees them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

BLOCK = 4096
"""What a file system gives out at a time, bytes."""


def on_disk(size: int) -> int:
    """What a file of `size` bytes takes."""
    return -(-size // BLOCK) * BLOCK


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write to a file without a buffer, so that a full disk is an OSError here and not when the
    file is closed.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file beside `path`, and put it in its place: whole or not at all."""
    making = path.with_name(f"{path.name}.making")
    try:
        write(making)
        making.replace(path)
    finally:
        making.unlink(missing_ok=True)
