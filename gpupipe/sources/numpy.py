"""numpy: arrays in .npy and .npz files, one per file or many along the first axis of a file."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gpupipe.dataset import array_index
from gpupipe.dataset.array_index import ArrayFiles, IndexedFile
from gpupipe.dataset.array_source import ArraySource, Patterns
from gpupipe.dataset.reading import map_file
from gpupipe.errors import did_you_mean
from gpupipe.formats import DamagedError, npy
from gpupipe.runtime.files import open_regular


class Numpy(ArraySource):
    """Arrays in .npy and .npz files, in C order and native byte order. Nothing is unpickled.

    The arrays of a .npz file must be stored, as numpy.savez does it, and not compressed.

    Complex numbers become pairs of real numbers: a last axis P of length 2 holds the real and the
    imaginary part.

    Attributes:
        root: The folder that holds one folder per class: ROOT/CLASS/x.npy, at any depth.
        manifest: The list of files, in the format of the source file_list: a .txt, or a table with
            the columns path and label. Its paths are relative to `root` if that is set, else to the
            folder of the manifest.
        label: Name of the manifest's column with labels; null if there are none. With `root`, null
            means that folders are no classes: all files under `root` are read, without labels.
        files: One pattern or several, in place of `root` and `manifest`. A pattern is a path
            with * and ?, and {000..012} for numbers.
        rows: Whether each row of a file's array, along the first axis, is a sample. If false, a
            file is one sample.
        labels: With `files`: one pattern or several of .npy files that hold one whole number for
            each sample, in the order of the samples.
        values: With `files`: further .npy files with numbers for each sample, such as
            {target: y.npy}. Each key is the name in a batch; its value is one pattern or several.
        arrays: The names of the arrays in .npz files: {array: x_train, labels: y_train}. A key is
            the name in `field`, a name in `values`, or "labels". A key that is left out stands for
            the array with the same name. A file with a single array needs no name.
        field: Name of the array in a batch.
        layout: One letter for each axis of a sample, such as CHW. By default L, HW, CHW or CDHW,
            by the number of axes.
        extensions: With `root`: the file name extensions of arrays, in upper or lower case.
    """

    name: ClassVar[str] = "numpy"

    extensions: tuple[str, ...] = Field(default=("npy",), min_length=1)
    rows: bool = False
    labels: Patterns | None = Field(default=None, min_length=1)
    values: dict[str, Patterns] = Field(default={})
    arrays: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _arrays_are_read(self) -> "Numpy":
        known = (self.field, "labels", *self.values)
        for name in self.arrays:
            if name not in known:
                raise ValueError(f"arrays: nothing is called '{name}'{did_you_mean(name, known)}")
        return self

    @property
    def has_labels(self) -> bool:
        return self.labels is not None or bool(self.values)

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return (self.field,), tuple(self.values)

    def read(self, path: str) -> IndexedFile:
        header = _read_header(path, self._name_in_file(self.field))
        if not self.rows:
            return IndexedFile(header.dtype, header.shape, header.offset, pairs=header.pairs)
        if len(header.shape) < 1 + header.pairs:
            raise ValueError(
                "a single number, which has no rows: set rows: false, or leave the file out"
            )
        count, *shape = header.shape
        step = header.length // count if count else 0
        return IndexedFile(header.dtype, tuple(shape), header.offset, count, step, header.pairs)

    def name_companions(self) -> list[str]:
        labels = [] if self.labels is None else ["labels"]
        return [*labels, *(f"values.{name}" for name in self.values)]

    def find_companions(self) -> dict[str, ArrayFiles]:
        named = ({} if self.labels is None else {"labels": self.labels}) | {
            f"values.{name}": patterns for name, patterns in self.values.items()
        }
        return {
            option: array_index.find_matching(patterns, f"data.{option}")
            for option, patterns in named.items()
        }

    def read_companion(self, option: str, files: ArrayFiles) -> NDArray[Any]:
        name = self._name_in_file(option.removeprefix("values."))
        return array_index.concatenate(files.paths, lambda path: _read_numbers(path, name))

    def _name_in_file(self, name: str) -> str:
        return self.arrays.get(name, name)


def _read_header(path: str, name: str) -> npy.NpyHeader:
    """Read and check the header of an array. `offset` in the result counts from the file's start.

    Args:
        path: The .npy or .npz file.
        name: The array's name in a .npz file; ignored for .npy.

    Raises:
        OSError: The file cannot be read.
        DamagedError: The file is cut off or too long; or a .npz is damaged.
        ValueError: There is no such array, or its format is not supported.
    """
    with open_regular(path, buffering=0) as file:
        start, size = 0, os.fstat(file.fileno()).st_size
        if path.lower().endswith(".npz"):
            start, size = npy.find_array(map_file(Path(path)), name)
            file.seek(start)
        header = npy.parse_header(file.read(min(npy.MAX_HEADER, size)))
    if size < header.offset + header.length:
        lacking = header.offset + header.length - size
        raise DamagedError(
            f"cut off: {lacking:,} of the {header.length:,} bytes are missing that an array "
            f"of {header.dtype} {header.shape} has"
        )
    if size > header.offset + header.length:
        raise DamagedError(
            f"{size - header.offset - header.length:,} bytes past its array of "
            f"{header.dtype} {header.shape}"
        )
    return replace(header, offset=start + header.offset)


def _read_numbers(path: str, name: str) -> NDArray[Any]:
    """Read an array with one number, (N,), or n numbers, (N, n), for each of N samples.

    Raises ValueError if the array has another shape, and all that `_read_header` raises.
    """
    header = _read_header(path, name)
    if not 1 <= len(header.shape) <= 2:
        raise ValueError(
            f"an array of the shape {header.shape}, but there should be one number a sample, "
            "or several: (N,) or (N, n)"
        )
    count = math.prod(header.shape)
    return np.fromfile(path, header.dtype, count, offset=header.offset).reshape(header.shape)
