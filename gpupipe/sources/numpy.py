"""numpy: arrays in .npy files, one a file, or many in a file along its first axis."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset import array_files
from gpupipe.dataset.array_files import ArrayFiles, FilePart
from gpupipe.dataset.array_source import ArraySource, Patterns
from gpupipe.formats import Damaged, npy


class Numpy(ArraySource):
    """Arrays in .npy files: numbers in C order and of the machine's byte order. Nothing is
    unpickled.

    root: a folder with a folder for each class: ROOT/CLASS/x.npy, at any depth. manifest: a list of
    files, as the source file_list has it: .txt, or a table with the columns path and label; its
    paths are relative to
      root, or to its folder.
    label: with a manifest: the name of the column with labels; null: none. files: in place of both,
    one pattern or several: paths with * and ?, and {000..012} for numbers. rows: each row of a
    file's array, along the first axis, is a sample; else a file is one. labels: with files: a .npy
    file, or several as for files, with a whole number for each sample, in their order. values: with
    files: further .npy files with a number, or several, for each sample, and what they are called
    in a batch: {target: y.npy}. field: what the array is called in a batch. layout: a letter for
    each axis of a sample, such as CHW; by default L, HW, CHW or CDHW, by the number of axes.
    extensions: with root: which files are arrays, without regard to case.

    complex numbers become pairs of real ones: a last axis P of length 2, the real and the imaginary
    part.
    """

    name: ClassVar[str] = "numpy"

    extensions: tuple[str, ...] = Field(default=("npy",), min_length=1)
    rows: bool = False
    labels: Patterns | None = Field(default=None, min_length=1)
    values: dict[str, Patterns] = Field(default={})

    @property
    def labelled(self) -> bool:
        return self.labels is not None or bool(self.values)

    def named_values(self) -> tuple[str, ...]:
        return tuple(self.values)

    def read(self, path: str) -> FilePart:
        found = _header(path)
        if not self.rows:
            return FilePart(found.dtype, found.shape, found.offset, pairs=found.pairs)
        if len(found.shape) < 1 + found.pairs:
            raise ValueError(
                "a single number, which has no rows: set rows: false, or leave the file out"
            )
        count, *shape = found.shape
        return FilePart(
            found.dtype,
            tuple(shape),
            found.offset,
            count,
            found.length // count if count else 0,
            found.pairs,
        )

    def beside(self) -> dict[str, ArrayFiles]:
        named = ({} if self.labels is None else {"labels": self.labels}) | {
            f"values.{name}": patterns for name, patterns in self.values.items()
        }
        return {
            option: array_files.matching(patterns, f"data.{option}")
            for option, patterns in named.items()
        }

    def read_labels(self, files: ArrayFiles) -> NDArray[np.int64]:
        return array_files.whole(files.paths, array_files.joined(files.paths, _numbers))

    def read_values(self, option: str, files: ArrayFiles) -> NDArray[Any]:
        return array_files.joined(files.paths, _numbers)


def _header(path: str) -> npy.Header:
    """Raises OSError, ValueError, Damaged."""
    with open(path, "rb", buffering=0) as file:
        found, size = npy.header(file.read(npy.MOST_HEADER)), os.fstat(file.fileno()).st_size
    if size < found.offset + found.length:
        lacking = found.offset + found.length - size
        raise Damaged(
            f"cut off: {lacking:,} of the {found.length:,} bytes are missing that an array "
            f"of {found.dtype} {found.shape} has"
        )
    if size > found.offset + found.length:
        raise Damaged(
            f"{size - found.offset - found.length:,} bytes behind its array of "
            f"{found.dtype} {found.shape}"
        )
    return found


def _numbers(path: str) -> NDArray[Any]:
    """A file's whole array: one number a row, or several. Raises OSError, ValueError, Damaged."""
    found = _header(path)
    if not 1 <= len(found.shape) <= 2:
        raise ValueError(
            f"an array of the shape {found.shape}, but there should be one number a sample, "
            "or several: (N,) or (N, n)"
        )
    numbers = np.fromfile(path, found.dtype, offset=found.offset)
    return numbers.reshape(found.shape)
