"""raw: numbers of one dtype and shape in flat files, one sample or many a file."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset import array_files
from gpupipe.dataset.array_files import ArrayFiles, FilePart
from gpupipe.dataset.array_source import ArraySource, Patterns
from gpupipe.dataset.shards import Dtype, Shape
from gpupipe.errors import counted
from gpupipe.formats import Damaged
from gpupipe.schema.field_types import WHOLE

Complex = Literal["complex64", "complex128"]
Bytes = Annotated[int, Field(ge=0, le=2**62), WHOLE]


class Labels(pydantic.BaseModel):
    """Flat files with a label for each sample, in their order.

    files: one pattern or several. dtype: of a label. offset: bytes at the beginning of each file
    that are no labels. every: bytes from one label to the next, where something else stands between
    them; by default those of a label.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    files: Patterns = Field(min_length=1)
    dtype: Dtype = "int64"
    offset: Bytes = 0
    every: Annotated[int, Field(ge=1, le=2**62), WHOLE] | None = None

    @pydantic.model_validator(mode="after")
    def _every_holds_one(self) -> Labels:
        if self.every is not None and self.every < np.dtype(self.dtype).itemsize:
            raise ValueError(
                f"every is {self.every}, but a label of {self.dtype} has "
                f"{counted(np.dtype(self.dtype).itemsize, 'byte')}"
            )
        return self


class Raw(ArraySource):
    """Arrays in flat files: nothing but numbers, in C order and of the machine's byte order
    (little-endian on all that gpupipe runs on).

    root: a folder with a folder for each class: ROOT/CLASS/x.bin, at any depth. manifest: a list of
    files, as the source file_list has it: .txt, or a table with the columns path and label; its
    paths are relative to
      root, or to its folder.
    label: with a manifest: the name of the column with labels; null: none. files: in place of both,
    one pattern or several: paths with * and ?, and {000..012} for numbers. dtype: float16, float32,
    float64, int8 to int64, uint8 to uint64, bool; complex64, complex128: pairs of real numbers, a
    last axis P of length 2. shape: of a sample, such as [3, 224, 224]. A file holds as many as fit;
    what does not divide into samples is an error. offset: bytes at the beginning of each file that
    are no samples. before: bytes in front of each sample that are not of it, as the label in
    CIFAR-10's files. labels: with files: further files, with a label for each sample, in their
    order: {files: labels.bin, dtype: uint8, offset: 8}. field: what the array is called in a batch.
    layout: a letter for each axis of a sample, such as CHW; by default L, HW, CHW or CDHW, by the
    number of axes. extensions: with root: which files are arrays, without regard to case.
    """

    name: ClassVar[str] = "raw"

    extensions: tuple[str, ...] = Field(default=("bin", "raw"), min_length=1)
    dtype: Complex | Dtype
    shape: Shape
    offset: Bytes = 0
    before: Bytes = 0
    labels: Labels | None = None

    @property
    def labelled(self) -> bool:
        return self.labels is not None

    def read(self, path: str) -> FilePart:
        length = int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize
        step = self.before + length
        count = _count(
            path,
            self.offset,
            step,
            f"samples of {step:,} bytes ({self.dtype} "
            f"{list(self.shape)}{f', {self.before} before' if self.before else ''})",
        )
        stored = np.dtype(self.dtype)
        pairs = stored.kind == "c"
        dtype = f"float{stored.itemsize * 4}" if pairs else self.dtype
        return FilePart(
            dtype,
            (*self.shape, 2) if pairs else self.shape,
            self.offset + self.before,
            None if count == 1 else count,
            step,
            pairs,
        )

    def beside(self) -> dict[str, ArrayFiles]:
        return (
            {}
            if self.labels is None
            else {"labels": array_files.matching(self.labels.files, "data.labels.files")}
        )

    def read_labels(self, files: ArrayFiles) -> NDArray[np.int64]:
        told = self.labels
        assert told is not None

        def read(path: str) -> NDArray[np.generic]:
            size = np.dtype(told.dtype).itemsize
            every = told.every or size
            count = _count(path, told.offset, every, f"labels, {every:,} bytes each")
            rows = np.fromfile(path, np.uint8, offset=told.offset).reshape(count, every)
            return np.ascontiguousarray(rows[:, :size]).view(told.dtype)[:, 0]

        return array_files.whole(files.paths, array_files.joined(files.paths, read))


def _count(path: str, offset: int, step: int, what: str) -> int:
    """How many things of `step` bytes stand behind the offset. Raises OSError, Damaged."""
    size = os.stat(path).st_size - offset
    if size < 0:
        raise Damaged(f"only {size + offset:,} bytes, but data.offset leaves out {offset:,}")
    count, rest = divmod(size, step)
    if rest:
        raise Damaged(
            f"{size:,} bytes{f' behind the first {offset:,}' if offset else ''} are not "
            f"{what}: {rest:,} are left over; see data.dtype and data.shape"
        )
    return count
