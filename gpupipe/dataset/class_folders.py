"""Scans a data set with one folder per class: its files, and when each folder last changed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.labels import make_unlabelled
from gpupipe.errors import DataError
from gpupipe.runtime.progress import Progress

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff", "ppm", "pgm", "pnm", "jp2")
_MAX_NAMED = 20
"""Maximum number of empty class folders that one message names."""


@dataclass(frozen=True)
class ClassFolders:
    """The files that `scan` found in class folders, with their labels.

    Attributes:
        classes: The names of the classes, sorted.
        paths: The files, relative to the root.
        labels: The class number of each file, int64 (N,); -1 without classes.
        times: The time of each folder's last change, in ns, by its path relative to the root.
    """

    classes: list[str]
    paths: list[str]
    labels: NDArray[np.int64]
    times: dict[str, int]


def get_suffixes(extensions: Iterable[str]) -> tuple[str, ...]:
    """Return each extension in lower case with a leading dot: ".jpg" for "JPG"."""
    return tuple(f".{extension.lower().lstrip('.')}" for extension in extensions)


def scan(
    root: Path, extensions: tuple[str, ...], of: str, progress: Progress, has_labels: bool = True
) -> ClassFolders:
    """List the files in `root`/CLASS/..., at any depth, in ImageFolder's order.

    Args:
        root: The folder of the class folders.
        extensions: The extensions of the files to list, regardless of case.
        of: The word for one file in messages, such as "image".
        progress: Called with the number of files listed so far.
        has_labels: If False, all files under `root` are listed, those in `root` itself first, and
            there are no classes.

    Raises:
        DataError: There is no class folder or no file, a class folder is empty, or a folder cannot
            be read.
    """
    try:
        return _scan(root, get_suffixes(extensions), of, progress, has_labels)
    except OSError as e:
        raise DataError(
            f"{e.filename or root}: cannot be read while the folder is scanned: {e.strerror or e}"
        ) from e


def _scan(
    root: Path, suffixes: tuple[str, ...], of: str, progress: Progress, has_labels: bool
) -> ClassFolders:
    folders, paths, counts, times = [""], list[str](), list[int](), dict[str, int]()
    if has_labels:
        times[""] = get_change_time(os.stat(root))
        with os.scandir(root) as entries:
            folders = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    for folder in folders:
        files = _list_files(root, folder, suffixes, times)
        paths += files
        counts.append(len(files))
        progress("scanning", len(paths), None)
    kind = f"{of} ({', '.join(suffixes)})"
    if not folders:
        raise DataError(
            f"{root}: no class folders: what is read is ROOT/CLASS/{of}{suffixes[0]}, so put the "
            f"{of}s into a folder for each class, or set data.label to null if they have no labels"
        )
    if not has_labels and not paths:
        raise DataError(f"{root}: no {kind}: set data.root or extensions")
    if not all(counts):
        raise _describe_empty(root, folders, counts, kind)
    if not has_labels:
        labels, classes = make_unlabelled(len(paths))
        return ClassFolders(classes, paths, labels, times)
    return ClassFolders(folders, paths, np.repeat(np.arange(len(counts)), counts), times)


def _describe_empty(root: Path, classes: list[str], counts: list[int], of: str) -> DataError:
    empty = [str(root / name) for name, count in zip(classes, counts, strict=True) if not count]
    more = f" and {len(empty) - _MAX_NAMED:,} more" if len(empty) > _MAX_NAMED else ""
    folders = "the empty class folder" + ("s" if len(empty) > 1 else "")
    return DataError(
        f"{', '.join(empty[:_MAX_NAMED])}{more}: no {of}: remove {folders}, or set data.extensions"
    )


def _list_files(
    root: Path, top: str, suffixes: tuple[str, ...], times: dict[str, int]
) -> list[str]:
    """List the files below `root`/`top`, sorted by folder, then by name.

    Adds the time of each folder's last change, in ns, to `times`.
    """
    names: dict[str, list[str]] = {}

    def read(folder: str, above: tuple[tuple[int, int], ...]) -> None:
        """Scan a folder. `above` holds device and inode of each folder that contains it."""
        here = os.stat(root / folder)
        identity = (here.st_dev, here.st_ino)
        if identity in above:
            path = root / folder
            link = next((p for p in (path, *path.parents) if p.is_symlink()), path)
            raise DataError(
                f"{link}: a link to a folder that it lies in, so the scan would never end: remove "
                "the link"
            )
        times[folder] = get_change_time(here)
        files = names[folder] = []
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    inner = f"{folder}/{entry.name}" if folder else entry.name
                    read(inner, (*above, identity))
                elif entry.name.lower().endswith(suffixes):
                    files.append(entry.name)

    status = os.stat(root)
    read(top, ((status.st_dev, status.st_ino),) if top else ())
    return [
        f"{folder}/{name}" if folder else name
        for folder in sorted(names)
        for name in sorted(names[folder])
    ]


def get_change_time(status: os.stat_result) -> int:
    """Return when a folder last gained, lost or renamed an entry: max(mtime, ctime), in ns.

    mtime alone is not enough, because tar, rsync and touch can set it to an earlier time.
    """
    return max(status.st_mtime_ns, status.st_ctime_ns)
