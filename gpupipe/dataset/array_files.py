"""Finds the files of a data set of arrays, and keeps their index until one of them changes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import class_folders, index_cache, index_file, labels
from gpupipe.dataset.index import Index
from gpupipe.dataset.manifest_paths import folder, inside
from gpupipe.dataset.missing_paths import missing_folder
from gpupipe.dataset.shards import find_files
from gpupipe.errors import DataError
from gpupipe.formats import manifest
from gpupipe.formats.manifest_rows import ManifestColumns
from gpupipe.runtime.progress import Progress
from gpupipe.schema.field_types import expand_home

_MISSING = "no such file: set data.manifest to the list of the samples"


@dataclass(frozen=True)
class FilePart:
    """The samples of one file: equally spaced arrays of one dtype and shape.

    Attributes:
        dtype: NumPy's name of the dtype of the stored numbers.
        shape: Shape of one sample.
        offset: Byte at which the first sample begins.
        count: Number of samples; None if the whole file is one sample.
        step: Bytes from the beginning of a sample to the beginning of the next.
        pairs: Whether the numbers are complex, stored as in `formats.npy.Header`.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    count: int | None = None
    step: int = 0
    pairs: bool = False


@dataclass(frozen=True)
class ArrayFiles:
    """The array files of a data set, in the order of the index.

    Attributes:
        root: The folder that all files lie in.
        names: Paths of the files, relative to `root`.
        labels: The label of each file, int64 (N,); None if the labels do not belong to files.
        classes: The names of the classes; None exactly if `labels` is None.
    """

    root: Path
    names: list[str]
    labels: NDArray[np.int64] | None = None
    classes: list[str] | None = None

    @property
    def paths(self) -> list[str]:
        return [os.path.join(self.root, name) for name in self.names]


def find_in_class_folders(
    root: Path, extensions: tuple[str, ...], has_labels: bool, progress: Progress
) -> ArrayFiles:
    """List the array files in `root`/CLASS/..., one folder per class.

    Without labels, folders are no classes: all array files under `root` are listed.

    Raises:
        DataError: The folder or a class is missing, empty or cannot be read.
    """
    top = expand_home(root)
    if not top.is_dir():
        raise missing_folder(top, "data.root", "put the data there, or set data.root")
    scanned = class_folders.scan(top.resolve(), extensions, "array", progress, has_labels)
    return ArrayFiles(top.resolve(), scanned.paths, scanned.labels, scanned.classes)


def find_in_manifest(
    file: Path, root: Path | None, field: str, label: str | None, progress: Progress
) -> ArrayFiles:
    """List the array files of a manifest, which has the format of the source file_list.

    Args:
        file: The manifest.
        root: The folder that paths are relative to; by default the manifest's folder.
        field: Name of the field, for error messages.
        label: Name of the column with labels; None if there are no labels.
        progress: Called with the number of rows read.

    Raises:
        DataError: The manifest is missing, empty or wrong.
    """
    try:
        top = folder(root or file.parent)
        rows = manifest.read(
            file,
            ManifestColumns({field: "path"}, label, is_label_required=False),
            lambda count: progress("reading", count, None),
        )
    except OSError as e:
        is_missing = isinstance(e, FileNotFoundError)
        reason = _MISSING if is_missing else f"cannot be read: {e.strerror or e}"
        raise DataError(f"{file}: {reason}") from e
    if not len(rows):
        raise DataError(f"{file}: no rows: list at least one file, a line each")
    names = inside(rows, rows.paths[field], [str((root or file.parent).absolute()), str(top)])
    numbers, classes = (
        labels.from_texts(rows.labels, rows.where)
        if rows.labels
        else labels.make_unlabelled(len(rows))
    )
    return ArrayFiles(top, names, numbers, classes)


def find_matching(patterns: str | tuple[str, ...], option: str) -> ArrayFiles:
    """List the files that match patterns, which have the syntax of `shards.paths`.

    Raises:
        DataError: No file matches. The message names `option`.
    """
    matches = find_files(patterns, option)
    root = Path(os.path.commonpath([path.parent for path in matches]))
    return ArrayFiles(root, [str(path.relative_to(root)) for path in matches])


def load_or_build(
    key: Any, files: Iterable[str], read: Callable[[], Index], previous: Index | None
) -> Index:
    """Return an earlier index if no file has changed since, else call `read` and save its index.

    Args:
        key: Identifies the index in the cache folder. Plain JSON and paths.
        files: The files that the index is built from.
        read: Builds the index.
        previous: The index that this process has built before, if any.

    Raises:
        DataError: A file cannot be read.
    """
    saved, started = index_cache.get_path(key), time.time()
    state, newest = _state(files)
    for index in (previous, index_file.open_saved(saved)):
        if index is not None and index.extra.get("state") == state:
            return index
    index = read()
    index = replace(index, extra=index.extra | {"state": state})
    index_file.keep(index, saved, newest, started)
    return index


def _state(files: Iterable[str]) -> tuple[str, int]:
    """Return a hash of the files' names and states, and the latest change in ns.

    A hash keeps the saved index small: there may be a million files.
    """
    digest, newest = hashlib.blake2b(digest_size=16), 0
    for file in files:
        try:
            state = index_file.file_state(Path(file))
        except OSError as e:
            raise DataError(f"{file}: {explain_os_error(e)}") from e
        newest = max(newest, *state[:2])
        digest.update(os.fsencode(file) + repr(state).encode())
    return digest.hexdigest(), newest


def explain_os_error(e: OSError) -> str:
    """Return the end of a message about a file that cannot be read."""
    return (
        "no such file: put it there, or leave it out"
        if isinstance(e, FileNotFoundError)
        else f"cannot be read: {e.strerror or e}"
    )
