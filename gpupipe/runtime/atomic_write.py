"""Write files and folders that appear complete or not at all.

A temporary file or folder beside the target is renamed to it. No library does this for files and
folders alike, and the standard library's `tempfile` creates files that only their owner may read.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""Ends the names of temporary files. A killed process leaves them behind."""


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Create or replace a file when the `with` block ends without an exception.

    Example:
        with write_atomically(path) as temporary:
            temporary.write_text("content")

    Args:
        path: The file. Its folder must exist.

    Yields:
        A path beside `path` to write to, at which there is no file yet.

    Raises:
        OSError: The file cannot be written.
    """
    temporary = _temporary_path(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def create_folder_atomically(path: Path) -> Iterator[Path]:
    """Create a folder when the `with` block ends without an exception.

    If another process creates the folder meanwhile, the folder of this process is dropped.

    Args:
        path: The folder. Missing parent folders are created.

    Yields:
        A path beside `path`, at which there is an empty folder to fill.

    Raises:
        OSError: The folder cannot be written.
    """
    temporary = _temporary_path(path.with_name(f".{path.name}"))
    try:
        temporary.mkdir(parents=True)
        yield temporary
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
