"""Finds the files of a data set of arrays, and keeps their index until one of them changes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import class_folders
from gpupipe.dataset.manifest_paths import read_files
from gpupipe.dataset.missing_paths import explain_os_error, missing_folder
from gpupipe.dataset.shards import find_files
from gpupipe.errors import DataError
from gpupipe.formats.manifest_rows import ManifestColumns
from gpupipe.runtime.progress import Progress
from gpupipe.schema.field_types import expand_home


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
    wanted = ManifestColumns({field: "path"}, label, is_label_required=False)
    try:
        files = read_files(file, root, wanted, progress)
    except OSError as e:
        reason = explain_os_error(e, "set data.manifest to the list of the samples")
        raise DataError(f"{file}: {reason}") from e
    return ArrayFiles(files.root, files.paths[field], files.labels, files.classes)


def find_matching(patterns: str | tuple[str, ...], option: str) -> ArrayFiles:
    """List the files that match patterns, which have the syntax of `shards.paths`.

    Raises:
        DataError: No file matches. The message names `option`.
    """
    matches = find_files(patterns, option)
    root = Path(os.path.commonpath([path.parent for path in matches]))
    return ArrayFiles(root, [str(path.relative_to(root)) for path in matches])
