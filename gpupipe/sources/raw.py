"""raw: arrays of one dtype and shape in flat binary files, one or many per file."""

import os
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset import array_index
from gpupipe.dataset.array_index import ArrayFiles, IndexedFile
from gpupipe.dataset.array_source import ArraySource, Patterns
from gpupipe.dataset.shards import Dtype, Shape
from gpupipe.errors import counted
from gpupipe.formats import DamagedError
from gpupipe.schema.field_types import WHOLE

Complex = Literal["complex64", "complex128"]
Bytes = Annotated[int, Field(ge=0, le=2**62), WHOLE]


class Labels(pydantic.BaseModel):
    """Flat files with one label for each sample, in the order of the samples.

    Attributes:
        files: One pattern or several, as in `data.files`.
        dtype: The dtype of a label.
        offset: Number of bytes to skip at the beginning of each file.
        every: Bytes from one label to the next, by default the size of a label. Set it if labels
            are not contiguous.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    files: Patterns = Field(min_length=1)
    dtype: Dtype = "int64"
    offset: Bytes = 0
    every: Annotated[int, Field(ge=1, le=2**62), WHOLE] | None = None

    @pydantic.model_validator(mode="after")
    def _every_holds_one(self) -> "Labels":
        if self.every is not None and self.every < np.dtype(self.dtype).itemsize:
            raise ValueError(
                f"every is {self.every}, but a label of {self.dtype} has "
                f"{counted(np.dtype(self.dtype).itemsize, 'byte')}"
            )
        return self


class Raw(ArraySource):
    """Arrays in flat files, which hold nothing but numbers in C order and native byte order.

    The native byte order is little-endian on all machines that gpupipe runs on.

    Attributes:
        root: The folder that holds one folder per class: ROOT/CLASS/x.bin, at any depth.
        manifest: The list of files, in the format of the source file_list: a .txt, or a table with
            the columns path and label. Its paths are relative to `root` if that is set, else to the
            folder of the manifest.
        label: Name of the manifest's column with labels; null if there are none. With `root`, null
            means that folders are no classes: all files under `root` are read, without labels.
        files: One pattern or several, in place of `root` and `manifest`. A pattern is a path
            with * and ?, and {000..012} for numbers.
        dtype: One of float16, float32, float64, int8 to int64, uint8 to uint64, bool, complex64
            and complex128. Complex numbers become pairs of real numbers: a last axis P of length 2.
        shape: Shape of a sample, such as [3, 224, 224]. A file holds as many samples as fit, and
            nothing may be left over.
        offset: Number of bytes to skip at the beginning of each file.
        before: Number of bytes to skip before each sample, such as the label in CIFAR-10's files.
        labels: With `files`: further files with one label for each sample, in the order of the
            samples: {files: labels.bin, dtype: uint8, offset: 8}.
        field: Name of the array in a batch.
        layout: One letter for each axis of a sample, such as CHW. By default L, HW, CHW or CDHW,
            by the number of axes.
        extensions: With `root`: the file name extensions of arrays, in upper or lower case.
    """

    name: ClassVar[str] = "raw"

    extensions: tuple[str, ...] = Field(default=("bin", "raw"), min_length=1)
    dtype: Complex | Dtype
    shape: Shape
    offset: Bytes = 0
    before: Bytes = 0
    labels: Labels | None = None

    @property
    def has_labels(self) -> bool:
        return self.labels is not None

    def read(self, path: str) -> IndexedFile:
        stored, shape = np.dtype(self.dtype), self.shape
        step = self.before + int(np.prod(shape, dtype=object)) * stored.itemsize
        before = f", {self.before} before" if self.before else ""
        items = f"samples of {step:,} bytes ({self.dtype} {list(shape)}{before})"
        count = _count_items(path, self.offset, step, items)
        first, rows = self.offset + self.before, None if count == 1 else count
        if stored.kind == "c":
            dtype = f"float{stored.itemsize * 4}"
            return IndexedFile(dtype, (*shape, 2), first, rows, step, pairs=True)
        return IndexedFile(self.dtype, shape, first, rows, step)

    def find_companions(self) -> dict[str, ArrayFiles]:
        if self.labels is None:
            return {}
        return {"labels": array_index.find_matching(self.labels.files, "data.labels.files")}

    def read_companion(self, option: str, files: ArrayFiles) -> NDArray[Any]:
        labels = self.labels
        assert labels is not None

        def read(path: str) -> NDArray[np.generic]:
            size = np.dtype(labels.dtype).itemsize
            every = labels.every or size
            count = _count_items(path, labels.offset, every, f"labels, {every:,} bytes each")
            rows = np.fromfile(path, np.uint8, offset=labels.offset).reshape(count, every)
            return np.ascontiguousarray(rows[:, :size]).view(labels.dtype)[:, 0]

        return array_index.concatenate(files.paths, read)


def _count_items(path: str, offset: int, step: int, items: str) -> int:
    """Return the number of items in a file.

    Args:
        path: The file.
        offset: Number of bytes before the first item.
        step: Size of an item in bytes.
        items: Description of the items, for messages.

    Raises:
        OSError: The file cannot be read.
        DamagedError: The file is shorter than `offset`, or ends within an item.
    """
    size = os.stat(path).st_size - offset
    if size < 0:
        raise DamagedError(f"only {size + offset:,} bytes, but data.offset leaves out {offset:,}")
    count, rest = divmod(size, step)
    if rest:
        raise DamagedError(
            f"{size:,} bytes{f' after the first {offset:,}' if offset else ''} are not "
            f"{items}: {rest:,} are left over; see data.dtype and data.shape"
        )
    return count
