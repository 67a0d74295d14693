"""Opens files for reading, and refuses FIFOs, sockets and devices: reading one may never end."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

NOT_REGULAR = "not a regular file, but a pipe, a socket or a device"
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Open a file for reading. O_NONBLOCK keeps a FIFO without a writer from blocking.

    Args:
        path: The file.
        buffering: As for open(); 0 for none.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    fd = os.open(path, _FLAGS)
    try:
        check_regular(os.fstat(fd), path)
        return os.fdopen(fd, "rb", buffering)
    except BaseException:
        os.close(fd)
        raise


def check_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise OSError if a path is not that of a regular file.

    Args:
        status: The path's os.stat().
        path: The path.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))


def is_irregular(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a FIFO, a socket or a device. Of one that is not there: False."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing or holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
