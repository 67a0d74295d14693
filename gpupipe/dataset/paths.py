"""Reads the paths that a manifest lists, and builds error messages for missing files."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import labels
from gpupipe.errors import DataError, shown
from gpupipe.formats import DamagedError, manifest
from gpupipe.formats.list_values import ListValues
from gpupipe.formats.manifest_rows import ManifestColumns
from gpupipe.runtime.progress import Progress
from gpupipe.schema.field_types import expand_home


def missing_folder(path: Path, option: str, advice: str) -> DataError:
    """Return the error for a path that is not a folder.

    Args:
        path: The path as the user wrote it, with ~ expanded.
        option: The setting that names the path, such as "data.root".
        advice: Tells the user what to do, in the message for a path that is neither file nor URL.
    """
    if os.path.isfile(path):  # noqa: PTH113  # False, too, for a path that is too long
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
    """Return the error for a file that is missing, or is a folder.

    Args:
        path: The path as the user wrote it, with ~ expanded.
        option: The setting that names the path, such as "data.shards".
        advice: Tells the user what to do, in the message for a missing file.
        what: The word for the file in the message, such as "shard".
    """
    if path.is_dir():
        suffixes = sorted({p.suffix for p in path.iterdir() if p.suffix and p.is_file()})
        example = suffixes[0] if len(suffixes) == 1 else ""
        return DataError(
            f"{path}: this is a folder, and {option} names files: write {path}/*{example}"
        )
    return DataError(f"{path}: no such {what}{_relative_to(path)}: {advice}")


def explain_os_error(e: OSError, advice: str = "put it there, or leave it out") -> str:
    """Return why a file cannot be read, for a message. `advice` follows if the file is missing."""
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
        advice: Tells the user what to do; added to the message of a DamagedError.
    """
    try:
        yield
    except OSError as e:
        raise DataError(f"{path}: {explain_os_error(e)}") from e
    except ValueError as e:
        raise DataError(f"{path}: {e}{f'; {advice}' if isinstance(e, DamagedError) else ''}") from e


def is_url(path: Path) -> bool:
    """Return whether the user wrote a path as a URL, of which `Path` turned a://b into a:/b."""
    return len(path.parts) > 1 and path.parts[0].endswith(":")


def _relative_to(path: Path) -> str:
    return "" if path.is_absolute() else f" in the working directory, {Path.cwd()}"


_ODD = re.compile(r"\0|(?:^|/)\.{0,2}(?:/|$)")
"""Matches a path that is not plainly NAME/NAME/...: it has NUL, or a part '', '.' or '..'."""
_LONGEST_PATH = 4095


def check_manifest_path(path: Path) -> Path:
    """Return the path of a manifest with ~ expanded.

    Raises:
        ValueError: The suffix is not in `manifest.SUFFIXES`, or the path contains NUL.
    """
    if manifest.get_suffix(path) not in manifest.SUFFIXES:
        if path.is_dir():
            raise ValueError(
                f"{path} is a folder, and no list of files: a folder of class folders is "
                "'source: folder' with data.root"
            )
        *others, last = manifest.SUFFIXES
        raise ValueError(
            f"{path} should end in {', '.join(others)} or {last}: the ending says what the "
            "file's format is"
        )
    if "\0" in str(path):
        raise ValueError("a NUL byte, which no path holds")
    return expand_home(path)


def resolve_root(root: Path) -> Path:
    """Return the folder with symbolic links resolved.

    Raises:
        DataError: There is no such folder.
    """
    if not root.is_dir():
        raise missing_folder(
            root, "data.root", "set data.root to the folder that the paths are relative to"
        )
    return root.resolve()


@dataclass(frozen=True)
class ManifestFiles:
    """The files that a manifest lists.

    Attributes:
        root: The folder that paths are relative to, with symbolic links resolved.
        paths: Maps the name of each field to the paths of its files, one per row, relative to
            `root`.
        labels: The label of each row, int64 (N,).
        classes: The names of the classes.
        values: Maps the name of each value to its numbers, (N,).
        where: Returns the FILE:LINE of a row, for messages.
        lists: Maps the name of each list to the lists of the rows.
    """

    root: Path
    paths: dict[str, list[str]]
    labels: NDArray[np.int64]
    classes: list[str]
    values: dict[str, NDArray[Any]]
    where: Callable[[int], str]
    lists: dict[str, ListValues]


def read_files(
    file: Path, root: Path | None, wanted: ManifestColumns, progress: Progress
) -> ManifestFiles:
    """Read a manifest.

    Args:
        file: The manifest.
        root: The folder that paths are relative to; by default the manifest's folder.
        wanted: The columns to read.
        progress: Called with the number of rows read.

    Raises:
        DataError: The manifest is empty, or a line is invalid. The message names FILE:LINE.
        OSError: The manifest cannot be read.
    """
    top = resolve_root(root or file.parent)
    rows = manifest.read(file, wanted, lambda count: progress("reading", count, None))
    if not len(rows):
        raise DataError(f"{file}: no rows: list at least one file, a line each")
    progress("reading", len(rows), None)
    roots = [str((root or file.parent).absolute()), str(top)]
    paths = {name: make_relative(rows.paths[name], roots, rows.where) for name in wanted.paths}
    numbers, classes = labels.number_classes(rows.labels or None, len(rows), rows.where)
    return ManifestFiles(top, paths, numbers, classes, rows.values, rows.where, rows.lists)


def make_relative(paths: list[str], roots: list[str], where: labels.Where) -> list[str]:
    """Make paths relative to the root folder.

    Args:
        paths: The paths, one per row.
        roots: Two absolute paths of the root folder: as written, and with links resolved.
        where: Maps a row's number to its location, for messages.

    Raises:
        DataError: A path lies outside the root, or cannot be the path of a file.
    """
    starts = (*(os.path.join(root, "") for root in roots), "./")
    relative = []
    for row, path in enumerate(paths):
        rest = (
            next(path[len(s) :] for s in starts if path.startswith(s))
            if path.startswith(starts)
            else path
        )
        if len(rest) > _LONGEST_PATH or _ODD.search(rest):
            try:
                rest = _normalize(path, roots)
            except ValueError as e:
                raise DataError(f"{where(row)}: {e}") from None
        relative.append(rest)
    return relative


def _normalize(path: str, roots: list[str]) -> str:
    """Return `path` relative to the root and without '.' and '..'.

    Raises ValueError if the path lies outside the root or cannot be the path of a file.
    """
    if "\0" in path:
        raise ValueError("a NUL byte, which no path holds: save the list as UTF-8")
    if len(path) > _LONGEST_PATH:
        raise ValueError(
            f"a path of {len(path):,} characters, more than a file's can have ({_LONGEST_PATH:,})"
        )
    if not path or path.endswith("/"):
        raise ValueError(f"{shown(path)} is no file's path" if path else "the path is empty")
    whole = os.path.normpath(os.path.join(roots[-1], path))
    for root in roots:
        start = os.path.join(root, "")
        if whole.startswith(start):
            return whole[len(start) :]
    raise ValueError(
        f"{shown(path)} does not lie in {roots[-1]}: move the file there, or set data.root "
        "to a folder that holds all files"
    )
