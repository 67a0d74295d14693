"""The file of a decoded cache: creates it, opens it safely, and notices changes of it.

Pixels of the file become batches without a copy. So no other user may be able to write to it: it is
a regular file of this user, and no link.
"""

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from gpupipe.decoded_cache.layout import (
    COUNTERS_OFFSET,
    COUNTERS_SIZE,
    SLOTS_OFFSET,
    UNDECIDED,
    CacheHeader,
    Counters,
    DamagedCacheError,
)
from gpupipe.runtime.file_locks import try_lock
from gpupipe.runtime.files import explain_foreign, write_atomically


def create_file(path: Path, header: CacheHeader) -> None:
    """Create a cache file without records. The file appears complete, or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    with write_atomically(path) as temporary, open(temporary, "wb") as f:
        os.fchmod(f.fileno(), 0o600)
        f.write(header.pack().ljust(COUNTERS_OFFSET, b"\0"))
        f.write(Counters(header.data_offset, 0, UNDECIDED).pack().ljust(SLOTS_OFFSET, b"\0")[:128])
        f.write(bytes(header.data_offset - SLOTS_OFFSET))
        f.truncate(header.size)


def read_header(path: Path) -> CacheHeader:
    """Read the header of a cache file, and check its counters and its size.

    Raises:
        OSError: The file cannot be read.
        DamagedCacheError: The file is no cache file, or is damaged.
    """
    fd = open_own(path)
    try:
        return unpack_header(fd)
    finally:
        os.close(fd)


def open_own(path: Path) -> int:
    """Open a cache file for reading and writing, and return its descriptor.

    Raises:
        DamagedCacheError: The file is a link or no regular file, or other users may write to it.
        OSError: The file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise DamagedCacheError("it is a symbolic link") from e
        raise
    status = os.fstat(fd)
    wrong = explain_foreign(status) if stat.S_ISREG(status.st_mode) else "is no regular file"
    if wrong:
        os.close(fd)
        raise DamagedCacheError(f"it {wrong}")
    return fd


def unpack_header(fd: int) -> CacheHeader:
    """Return the header of an open cache file, after checks of its counters and its size.

    Raises:
        DamagedCacheError: The file is no cache file, or is damaged.
    """
    head = os.pread(fd, SLOTS_OFFSET, 0)
    header = CacheHeader.unpack(head[:COUNTERS_OFFSET])
    counters = Counters.unpack(head[COUNTERS_OFFSET:][:COUNTERS_SIZE])
    if os.fstat(fd).st_size != header.size or counters.end > header.size:
        raise DamagedCacheError("it has another size than its header says")
    return header


class FileState(NamedTuple):
    """The properties of a cache file that show whether it was changed.

    `RecordFile.add` always changes the counters. Another program that writes to the file does not.
    """

    size: int
    mtime_ns: int
    blocks: int
    counters: bytes


def read_state(fd: int) -> FileState:
    """Return the state of an open cache file."""
    status = os.fstat(fd)
    counters = os.pread(fd, COUNTERS_SIZE, COUNTERS_OFFSET)
    return FileState(status.st_size, status.st_mtime_ns, status.st_blocks, counters)


def lock_path(path: Path) -> Path:
    """Return the lock file of a cache file."""
    return path.with_suffix(".lock")


def is_in_use(path: Path) -> bool:
    """Return whether a living process has a cache file open.

    Raises OSError if the file cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)
