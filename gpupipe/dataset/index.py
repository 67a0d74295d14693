"""The index of a data set: a table with one row a sample, held in memory-mapped arrays, so that ten
million rows cost no Python objects.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.byte_range import Span
from gpupipe.errors import counted

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class StringArray:
    """Texts in one array. letters: uint8 (bytes,), all texts behind one another; ends: int64 (N,),
    where each ends in it.
    """

    letters: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str]) -> StringArray:
        encoded = [os.fsencode(t) for t in texts]
        return cls(
            np.frombuffer(b"".join(encoded), np.uint8),
            np.cumsum([len(e) for e in encoded], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> str:
        return os.fsdecode(self.letters[self.ends[i - 1] if i else 0 : self.ends[i]].tobytes())

    def padded(self, rows: Rows, before: bytes) -> NDArray[np.uint8]:
        """Texts behind `before`, uint8 (len(rows), longest), filled up with NUL."""
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        places = np.arange(lengths.max())
        letters = self.letters[np.minimum(starts[:, None] + places, len(self.letters) - 1)]
        texts = np.zeros((len(rows), len(before) + len(places)), np.uint8)
        texts[:, : len(before)] = np.frombuffer(before, np.uint8)
        texts[:, len(before) :] = np.where(places < lengths[:, None], letters, 0)
        return texts

    def take(self, rows: Rows) -> StringArray:
        return StringArray.of(self[int(i)] for i in rows)


@dataclass(frozen=True)
class ArrayLayout:
    """What the bytes of a field are where they are no image file: numbers in C order, of the
    machine's byte order.

    dtype: NumPy's name ("float32"). shape: of every sample; None where `shapes` says it for each:
    int64 (N, axes).
    """

    dtype: str
    shape: tuple[int, ...] | None
    shapes: NDArray[np.int64] | None = None

    def shape_of(self, i: int) -> tuple[int, ...]:
        return (
            self.shape
            if self.shapes is None and self.shape is not None
            else tuple(self.shapes[i].tolist())  # type: ignore[index]  # one of them is there
        )

    def take(self, rows: Rows) -> ArrayLayout:
        return ArrayLayout(
            self.dtype, self.shape, None if self.shapes is None else self.shapes[rows]
        )


@dataclass(frozen=True)
class FileColumn:
    """A field whose samples are image files of their own: row i is the file `root`/paths[i]."""

    root: str
    paths: StringArray
    array: None = None

    def span(self, i: int) -> Span:
        return Span(os.path.join(self.root, self.paths[i]))

    def encoded_paths(self, rows: Rows) -> NDArray[np.uint8]:
        """Whole paths as DALI's io.file.read takes them: uint8 (len(rows), longest), filled up with
        NUL, which ends a path for the system.

        One array, and not one a sample: DALI looks at each array that it is given in Python.
        """
        return self.paths.padded(rows, os.fsencode(self.root) + b"/")

    def take(self, rows: Rows) -> FileColumn:
        return FileColumn(self.root, self.paths.take(rows))


@dataclass(frozen=True)
class SpanColumn:
    """A field whose samples are parts of files. Row i: `length` bytes from `offset` on in the file
    `root`/files[file].

    file: int32 (N,); offset, length: int64 (N,). array: what the bytes are, where they are no image
    file.
    """

    root: str
    files: StringArray
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    array: ArrayLayout | None = None

    def path(self, number: int) -> str:
        """Of one of `files`."""
        return os.path.join(self.root, self.files[number])

    def span(self, i: int) -> Span:
        return Span(self.path(int(self.file[i])), int(self.offset[i]), int(self.length[i]))

    def take(self, rows: Rows) -> SpanColumn:
        array = None if self.array is None else self.array.take(rows)
        return SpanColumn(
            self.root, self.files, self.file[rows], self.offset[rows], self.length[rows], array
        )


Column = FileColumn | SpanColumn


@dataclass(frozen=True, repr=False)
class Index:
    """The samples of a data set.

    names: what samples are called: in messages, and in the fingerprint. labels: int64 (N,), numbers
    of `classes`. columns: by the name of a field ("image", "mask"), where its bytes are; the first
    is what steps work on, and what messages name. values: by the name of a field, numbers that need
    no reading: (N,) or (N, n), delivered as they are. fingerprint: a hash of what the samples are:
    what makes two data sets the same for a resume. note: what every output must say of this data
    ("stand-in data, not LFW"), or empty. warning: what load() warns of: that this is not the data
    that was asked for; or empty.
    """

    root: str
    names: StringArray
    labels: NDArray[np.int64]
    classes: list[str]
    columns: dict[str, Column]
    fingerprint: str
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    note: str = ""
    warning: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def summary(self) -> str:
        """`2,000 samples in 416 classes (stand-in data, not LFW)`."""
        classes = counted(len(self.classes), "class", "classes")
        note = f" ({self.note})" if self.note else ""
        return f"{counted(len(self), 'sample')} in {classes}{note}"

    def __repr__(self) -> str:
        fields = ", ".join([*self.columns, *self.values])
        return f"<Index of {self.root}: {self.summary}, {fields}>"

    @property
    def main(self) -> str:
        """The name of the first field."""
        return next(iter(self.columns))

    def span(self, i: int, name: str | None = None) -> Span:
        """Where the bytes of a field of row i are; by default of the first."""
        return self.columns[name or self.main].span(i)

    def path(self, i: int) -> str:
        """What messages call row i: its file; where that holds several samples, behind a colon the
        sample's name.
        """
        path = self.span(i).path
        return (
            path
            if isinstance(self.columns[self.main], FileColumn)
            or f"/{path}".endswith(f"/{self.names[i]}")
            else f"{path}:{self.names[i]}"
        )

    def same_samples(self, other: Index) -> bool:
        """Whether the first field of every row lies in the same place of the same file."""
        named = len(self.names) and len(other.names)  # those of a server are not known here
        if len(self) != len(other) or not (named or self.fingerprint == other.fingerprint):
            return False
        return all(self.span(i) == other.span(i) for i in range(len(self)))

    def subset(self, rows: Rows) -> Index:
        """The index of some rows."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        values = {name: array[rows] for name, array in self.values.items()}
        names, labels = [self.names[int(i)] for i in rows], self.labels[rows]
        part = build(self.root, names, labels, self.classes, columns=columns, values=values)
        return replace(part, note=self.note, warning=self.warning)


def build(
    root: str,
    names: Sequence[str] | StringArray,
    labels: NDArray[np.int64],
    classes: list[str],
    extra: dict[str, Any] | None = None,
    columns: dict[str, Column] | None = None,
    values: dict[str, NDArray[Any]] | None = None,
) -> Index:
    """An index in memory. Without `columns`, `names` are the paths of image files relative to
    `root`.
    """
    texts = names if isinstance(names, StringArray) else StringArray.of(names)
    columns = columns or {"image": FileColumn(root, texts)}
    fingerprint = _fingerprint(texts, labels, classes, columns, values or {})
    return Index(
        root, texts, labels, classes, columns, fingerprint, values or {}, extra=extra or {}
    )


def nothing() -> Index:
    """The index of no samples: what stands for data that is not there yet."""
    return build("", [], np.empty(0, np.int64), [])


def _fingerprint(
    names: StringArray,
    labels: NDArray[np.int64],
    classes: list[str],
    columns: dict[str, Column],
    values: dict[str, NDArray[Any]],
) -> str:
    digest = hashlib.blake2b(json.dumps(classes).encode(), digest_size=16)
    for array in (names.letters, names.ends, labels):
        digest.update(array.tobytes())
    for name, column in columns.items():
        for array in _identity(column, names):
            digest.update(name.encode() + array.tobytes())
        if column.array is not None:
            digest.update(json.dumps([column.array.dtype, column.array.shape]).encode())
    for name, array in values.items():
        digest.update(name.encode() + array.dtype.str.encode() + array.tobytes())
    return digest.hexdigest()


def _identity(column: Column, names: StringArray) -> list[NDArray[Any]]:
    """What of a column says which samples there are."""
    if isinstance(column, FileColumn):
        return [] if column.paths is names else [column.paths.letters, column.paths.ends]
    shapes = [] if column.array is None or column.array.shapes is None else [column.array.shapes]
    return [column.files.letters, column.files.ends, column.file, column.length, *shapes]
