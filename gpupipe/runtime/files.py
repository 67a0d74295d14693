"""The cache folder, and files that other processes use at the same time.

`open_regular` refuses files that may block for ever. `write_atomically` and
`create_folder_atomically` make a file or a folder appear complete or not at all: they rename a
temporary one beside it. (`tempfile` creates files that only their owner may read.) `file_locks`
keeps other processes out of a file. `cache_dir` is the folder of files that gpupipe can create
again, such as indexes and downloads.
"""

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from gpupipe.runtime.systems import IS_POSIX, open_flags

NOT_REGULAR = "not a regular file, but a pipe, a socket or a device"
TEMPORARY_SUFFIX = ".tmp"
"""Ends the names of temporary files. A killed process leaves them behind."""
_FLAGS = open_flags("O_RDONLY", "O_NONBLOCK", "O_NOCTTY")


def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. For a FIFO, raise OSError instead of waiting for a writer.

    Args:
        path: The file.
        buffering: As in open(); 0 for unbuffered reads.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    fd = os.open(path, _FLAGS)
    try:
        check_regular(os.fstat(fd), path)
        return os.fdopen(fd, "rb", buffering)
    except BaseException:
        os.close(fd)
        raise


def check_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise OSError if a path is not a regular file.

    Args:
        status: The result of os.stat() for the path.
        path: The path, for the error.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))


def is_irregular(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a FIFO, a socket or a device; False if nothing exists there."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing, or not a JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk, where it outlives a failure of the power."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_at(file: int, begin: int, data: bytes | memoryview) -> None:
    """Write all of `data` to an open file, from its byte `begin` on."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, begin)
        view, begin = view[written:], begin + written


@contextmanager
def write_atomically(path: Path, is_durable: bool = False) -> Iterator[Path]:
    """Create or replace a file when the `with` block ends without an exception.

    Examples:
        with write_atomically(path) as temporary:
            temporary.write_text("content")

    Args:
        path: The file. Its folder must exist.
        is_durable: Whether the file is to be complete even if the power fails afterwards.

    Yields:
        The path to write to. It is beside `path`, and there is no file at it yet.

    Raises:
        OSError: The file cannot be written.
    """
    temporary = _temporary_path(path)
    try:
        yield temporary
        if is_durable:
            sync_file(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def create_folder_atomically(path: Path) -> Iterator[Path]:
    """Create a folder when the `with` block ends without an exception.

    If another process creates `path` meanwhile, the folder made here is discarded.

    Args:
        path: The folder. Missing parent folders are created.

    Yields:
        The path of an empty folder beside `path`, to be filled.

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


def explain_foreign(status: os.stat_result) -> str:
    """Return why other users could change a file or folder of this user's; "" if they cannot.

    Args:
        status: Of the file itself: from `fstat`, or from `lstat`, which follows no link.
    """
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if IS_POSIX and status.st_uid != os.getuid():
        return "belongs to another user"
    if IS_POSIX and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return ""


def expand_user(path: str | Path) -> Path:
    """Expand ~ and ~USER at the beginning of a path, as a shell does.

    If HOME is empty, ~ is the home directory in the user database, and not the root folder. If no
    home directory can be found, return the path unchanged.
    """
    text = os.fspath(path)
    is_own = text == "~" or text.startswith("~/")
    if is_own and IS_POSIX and os.environ.get("HOME") == "":
        import pwd

        with suppress(KeyError):  # this user is not in the database
            text = pwd.getpwuid(os.getuid()).pw_dir + text[1:]
    return Path(os.path.expanduser(text))  # noqa: PTH111  # Path.expanduser raises for no user


def cache_dir() -> Path:
    """Return gpupipe's cache folder, which may not exist yet.

    Returns:
        `$GPUPIPE_CACHE` if it is set, else `$XDG_CACHE_HOME/gpupipe`, else `~/.cache/gpupipe`.
    """
    override = os.environ.get("GPUPIPE_CACHE")
    if override:
        return expand_user(override)
    return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "gpupipe"
