"""Messages for a folder or file of the data that is not there, or cannot be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from gpupipe.errors import DataError
from gpupipe.formats import Damaged


def missing_folder(path: Path, option: str, advice: str) -> DataError:
    """Return the error for a folder that is not there, or is no folder.

    Args:
        path: The folder as it was written, with ~ expanded.
        option: The setting that names it, such as "data.root".
        advice: What to do if no mistake is recognised.
    """
    if _is_file(path):
        return DataError(
            f"{path}: this is a file, and {option} is a folder: a list of files is 'source: "
            "file_list' with data.file, a tar is 'source: webdataset' with data.shards"
        )
    if is_url(path):
        local = Path(*path.parts[1:])
        hint = f"write /{local}" if path.parts[0] == "file:" else "a remote store is source: remote"
        return DataError(f"{path}: no such folder: {option} is a path, and no URL: {hint}")
    return DataError(f"{path}: no such folder{_relative_to(path)}: {advice}")


def missing_file(path: Path, option: str, advice: str, what: str = "file") -> DataError:
    """Return the error for a file that is not there, or is a folder.

    Args:
        path: The file as it was written, with ~ expanded.
        option: The setting that names it, such as "data.shards".
        advice: What to do if no mistake is recognised.
        what: What the file is, in one word.
    """
    if path.is_dir():
        suffixes = sorted({p.suffix for p in path.iterdir() if p.suffix and p.is_file()})
        example = suffixes[0] if len(suffixes) == 1 else ""
        return DataError(
            f"{path}: this is a folder, and {option} names files: write {path}/*{example}"
        )
    return DataError(f"{path}: no such {what}{_relative_to(path)}: {advice}")


def explain_os_error(e: OSError, advice: str = "put it there, or leave it out") -> str:
    """Return the end of a message about a file that cannot be read; `advice`: if it is missing."""
    if isinstance(e, FileNotFoundError):
        return f"no such file: {advice}"
    return f"cannot be read: {e.strerror or e}"


@contextlib.contextmanager
def name_file(
    path: str | Path, advice: str = "write the file again, or leave it out"
) -> Iterator[None]:
    """Turn an OSError or ValueError into a DataError that names the file.

    Args:
        path: The file.
        advice: What to do if it is damaged.
    """
    try:
        yield
    except OSError as e:
        raise DataError(f"{path}: {explain_os_error(e)}") from e
    except ValueError as e:
        raise DataError(f"{path}: {e}{f'; {advice}' if isinstance(e, Damaged) else ''}") from e


def is_url(path: Path) -> bool:
    """Whether a path was written as a URL; Path turns a://b into a:/b."""
    return len(path.parts) > 1 and path.parts[0].endswith(":")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _relative_to(path: Path) -> str:
    return "" if path.is_absolute() else f" in the working directory, {Path.cwd()}"
