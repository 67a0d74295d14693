"""The folder of the shards: one conversion at a time, and failures to write named as such."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpupipe.errors import GpupipeError
from gpupipe.runtime.file_locks import try_lock
from gpupipe.runtime.systems import require_posix


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn an OSError inside the context into a GpupipeError: the machine failed, and no sample."""
    try:
        yield
    except OSError as e:
        reason = (e.strerror or str(e)).lower()
        raise GpupipeError(
            f"{e.filename or path} cannot be written: {reason}; finished shards are kept, and the "
            "same command goes on"
        ) from e


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep other conversions out of a folder. Raises GpupipeError if one is there."""
    require_posix("`gpupipe convert`")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(descriptor):
            raise GpupipeError(f"{folder}: another conversion writes to it: wait until it ends")
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of the files in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
