"""Scan a data set with one folder per class: its files, and when each folder last changed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.labels import make_unlabelled
from gpupipe.errors import DataError
from gpupipe.runtime.progress import Progress

_MAX_NAMED = 20
"""Empty class folders that one message names."""


@dataclass
class ClassFolders:
    """The result of a scan.

    Attributes:
        classes: The names of the classes, sorted.
        paths: The files, relative to the root.
        labels: The class number of each file, int64 (N,).
        times: When each folder last changed, in ns, by its path relative to the root.
    """

    classes: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    labels: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    times: dict[str, int] = field(default_factory=dict)


def scan(
    root: Path, extensions: tuple[str, ...], of: str, progress: Progress, has_labels: bool = True
) -> ClassFolders:
    """List the files in `root`/CLASS/..., at any depth, in ImageFolder's order.

    Args:
        root: The folder of the class folders.
        extensions: Which files to list, regardless of case.
        of: What messages call one file, such as "image".
        progress: Called with the number of files so far.
        has_labels: If false, folders are no classes: all files under `root` are listed, those in
            `root` itself first, and their label is 0.

    Raises:
        DataError: There are no classes, or a class is empty or cannot be read.
    """
    suffixes = tuple(f".{e.lower().lstrip('.')}" for e in extensions)
    try:
        read = _scan if has_labels else _scan_unlabelled
        return read(root, suffixes, of, progress)
    except OSError as e:
        raise DataError(
            f"{e.filename or root}: cannot be read while the folder is scanned: {e.strerror or e}"
        ) from e


def _scan(root: Path, suffixes: tuple[str, ...], of: str, progress: Progress) -> ClassFolders:
    here = os.stat(root)
    scanned, counts = ClassFolders(times={"": get_change_time(here)}), []
    with os.scandir(root) as entries:
        scanned.classes = sorted(
            e.name for e in entries if not e.name.startswith(".") and e.is_dir()
        )
    for name in scanned.classes:
        tree = _Tree(root, suffixes, scanned.times)
        tree.read(name, (_get_identity(here),))
        files = tree.list_files()
        scanned.paths += files
        counts.append(len(files))
        progress("scanning", len(scanned.paths), None)
    if not all(counts):
        raise _describe_empty(root, scanned.classes, counts, f"{of} ({', '.join(suffixes)})")
    if not counts:
        kind = suffixes[0]
        raise DataError(
            f"{root}: no class folders: what is read is ROOT/CLASS/{of}{kind}, so put the "
            f"{of}s into a folder for each class, or set data.label to null if they have no labels"
        )
    scanned.labels = np.repeat(np.arange(len(counts)), counts)
    return scanned


def _describe_empty(root: Path, classes: list[str], counts: list[int], of: str) -> DataError:
    empty = [str(root / name) for name, count in zip(classes, counts, strict=True) if not count]
    more = f" and {len(empty) - _MAX_NAMED:,} more" if len(empty) > _MAX_NAMED else ""
    folders = "the empty class folder" + ("s" if len(empty) > 1 else "")
    return DataError(
        f"{', '.join(empty[:_MAX_NAMED])}{more}: no {of}: remove {folders}, or set data.extensions"
    )


def _scan_unlabelled(
    root: Path, suffixes: tuple[str, ...], of: str, progress: Progress
) -> ClassFolders:
    scanned = ClassFolders()
    tree = _Tree(root, suffixes, scanned.times)
    tree.read("", ())
    scanned.paths = tree.list_files()
    progress("scanning", len(scanned.paths), None)
    if not scanned.paths:
        raise DataError(f"{root}: no {of} ({', '.join(suffixes)}): set data.root or extensions")
    scanned.labels, scanned.classes = make_unlabelled(len(scanned.paths))
    return scanned


class _Tree:
    """The files under a folder: names by folder, both in the order of `os.scandir`.

    Adds to `times` when each folder last changed.
    """

    def __init__(self, root: Path, suffixes: tuple[str, ...], times: dict[str, int]) -> None:
        self._root, self._suffixes, self._times = root, suffixes, times
        self.files: dict[str, list[str]] = {}

    def list_files(self) -> list[str]:
        """Return the paths of all files: by folder, and in it by name, both sorted."""
        return [
            f"{folder}/{file}" if folder else file
            for folder in sorted(self.files)
            for file in sorted(self.files[folder])
        ]

    def read(self, folder: str, above: tuple[tuple[int, int], ...]) -> None:
        """Scan `folder`, relative to the root; `above`: identities of the folders it lies in."""
        here = os.stat(self._root / folder)
        if _get_identity(here) in above:
            raise DataError(
                f"{self._root / folder}: a link to a folder that it lies in, so the scan "
                "would never end: remove the link"
            )
        self._times[folder] = get_change_time(here)
        files = self.files[folder] = []
        with os.scandir(self._root / folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    inner = f"{folder}/{entry.name}" if folder else entry.name
                    self.read(inner, (*above, _get_identity(here)))
                elif entry.name.lower().endswith(self._suffixes):
                    files.append(entry.name)


def _get_identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def get_change_time(status: os.stat_result) -> int:
    """When a folder last gained, lost or renamed an entry, in ns.

    Looks at ctime as well as mtime: tar, rsync and touch set back only mtime.
    """
    return max(status.st_mtime_ns, status.st_ctime_ns)
