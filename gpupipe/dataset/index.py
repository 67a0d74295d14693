"""The index of a data set: a table with one row per sample.

Its columns are arrays, often memory-mapped, so that ten million rows need no Python objects.
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
    """N strings in one array, stored as in Arrow.

    String i is data[offsets[i] : offsets[i + 1]], as the file system encodes it.

    Attributes:
        data: The bytes of all strings, concatenated, uint8 (bytes,).
        offsets: Where each string begins, and where the last one ends, int64 (N + 1,).
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> StringArray:
        encoded = [os.fsencode(string) for string in strings]
        return cls.from_ends(
            np.frombuffer(b"".join(encoded), np.uint8),
            np.cumsum([len(e) for e in encoded], dtype=np.int64),
        )

    @classmethod
    def from_ends(cls, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> StringArray:
        """Return the strings of which only the ends in `data` are known, int64 (N,)."""
        return cls(data, np.concatenate([np.zeros(1, np.int64), ends]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> str:
        return os.fsdecode(self.data[self.offsets[i] : self.offsets[i + 1]].tobytes())

    def pad(self, rows: Rows, prefix: bytes) -> NDArray[np.uint8]:
        """Prefix each string of `rows`, and pad all to one length.

        Returns:
            uint8 (len(rows), len(prefix) + longest), padded with NUL.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        columns = np.arange(lengths.max())
        content = self.data[np.minimum(starts[:, None] + columns, len(self.data) - 1)]
        padded = np.zeros((len(rows), len(prefix) + len(columns)), np.uint8)
        padded[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        padded[:, len(prefix) :] = np.where(columns < lengths[:, None], content, 0)
        return padded

    @property
    def hashed(self) -> list[NDArray[Any]]:
        """The arrays that a fingerprint hashes: the bytes, and where each string ends."""
        return [self.data, self.offsets[1:]]

    def take(self, rows: Rows) -> StringArray:
        return StringArray.from_strings(self[int(i)] for i in rows)


@dataclass(frozen=True)
class ArrayLayout:
    """The dtype and shapes of a field of arrays, stored in C order and native byte order.

    Attributes:
        dtype: NumPy's name of the dtype, such as "float32".
        shape: The shape of every sample; None if samples differ.
        shapes: The shape of each sample, int64 (N, axes), if samples differ; else None.
    """

    dtype: str
    shape: tuple[int, ...] | None
    shapes: NDArray[np.int64] | None = None

    def shape_of(self, i: int) -> tuple[int, ...]:
        return (
            self.shape
            if self.shapes is None and self.shape is not None
            else tuple(self.shapes[i].tolist())  # type: ignore[index]  # one of the two is set
        )

    def take(self, rows: Rows) -> ArrayLayout:
        return ArrayLayout(
            self.dtype, self.shape, None if self.shapes is None else self.shapes[rows]
        )


@dataclass(frozen=True)
class FileColumn:
    """A field with one image file per sample: row i is the file `root`/paths[i]."""

    root: str
    paths: StringArray
    array: None = None

    def span(self, i: int) -> Span:
        return Span(os.path.join(self.root, self.paths[i]))

    def encoded_paths(self, rows: Rows) -> NDArray[np.uint8]:
        """Return absolute paths in the form that DALI's io.file.read takes.

        All paths are in one array: DALI inspects every array that it gets in Python.

        Returns:
            uint8 (len(rows), longest), padded with NUL, which ends a path for the system.
        """
        return self.paths.pad(rows, os.fsencode(self.root) + b"/")

    def take(self, rows: Rows) -> FileColumn:
        return FileColumn(self.root, self.paths.take(rows))


@dataclass(frozen=True)
class SpanColumn:
    """A field whose samples are byte ranges of files.

    Row i is the `length[i]` bytes from `offset[i]` on in the file `root`/files[file[i]].

    Attributes:
        root: The folder that `files` are relative to.
        files: The files.
        file: The number of each row's file, int32 (N,).
        offset: The first byte of each row, int64 (N,).
        length: The number of bytes of each row, int64 (N,).
        array: Dtype and shapes if the bytes are arrays; None if they are image files.
    """

    root: str
    files: StringArray
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    array: ArrayLayout | None = None

    def path(self, number: int) -> str:
        """The path of `files[number]`, with the root."""
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
    """The samples of a data set: a table of N rows.

    Attributes:
        root: The folder or URL of the data. It may be empty.
        names: The name of each sample, used in messages and in the fingerprint.
        labels: The number of each sample's class, int64 (N,).
        classes: The names of the classes.
        columns: The byte ranges of each field, by the field's name ("image", "mask"). By default,
            steps work on the first field. Messages name samples by it.
        fingerprint: A hash of the samples. A resume requires equal fingerprints.
        values: Numbers that are delivered as they are, (N,) or (N, n), by the value's name.
        note: What every output must say about this data ("stand-in data, not LFW"), or "".
        warning: What load() warns about, such as data that stands in for other data, or "".
        extra: Facts that a source or the cache saves with the index. Plain JSON.
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
        """One line: `2,000 samples in 416 classes (stand-in data, not LFW)`."""
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
        """The byte range of a field of row i; by default, of the first field."""
        return self.columns[name or self.main].span(i)

    def path(self, i: int) -> str:
        """What messages call row i: FILE, or FILE:NAME if the file holds several samples."""
        path = self.span(i).path
        return (
            path
            if isinstance(self.columns[self.main], FileColumn)
            or f"/{path}".endswith(f"/{self.names[i]}")
            else f"{path}:{self.names[i]}"
        )

    def same_samples(self, other: Index) -> bool:
        """Whether both indexes have the same byte range for the first field of every row."""
        have_names = len(self.names) and len(other.names)  # A server's index comes without names.
        if len(self) != len(other) or not (have_names or self.fingerprint == other.fingerprint):
            return False
        return all(self.span(i) == other.span(i) for i in range(len(self)))

    def subset(self, rows: Rows) -> Index:
        """Return the index of the chosen rows, with a fingerprint of its own."""
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
    """Build an index and compute its fingerprint.

    Args:
        root: The folder of the data.
        names: The name of each sample. Without `columns`, these are the paths of image files
            relative to `root`.
        labels: The number of each sample's class, int64 (N,).
        classes: The names of the classes.
        extra: Facts to save with the index. Plain JSON.
        columns: The byte ranges of each field; by default one field "image".
        values: Further numbers of each sample, (N,) or (N, n), by name.
    """
    texts = names if isinstance(names, StringArray) else StringArray.from_strings(names)
    columns = columns or {"image": FileColumn(root, texts)}
    fingerprint = _fingerprint(texts, labels, classes, columns, values or {})
    return Index(
        root, texts, labels, classes, columns, fingerprint, values or {}, extra=extra or {}
    )


def nothing() -> Index:
    """Return an index without samples, a placeholder for data that is not there yet."""
    return build("", [], np.empty(0, np.int64), [])


def _fingerprint(
    names: StringArray,
    labels: NDArray[np.int64],
    classes: list[str],
    columns: dict[str, Column],
    values: dict[str, NDArray[Any]],
) -> str:
    digest = hashlib.blake2b(json.dumps(classes).encode(), digest_size=16)
    for array in (*names.hashed, labels):
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
    """The arrays of a column that the fingerprint hashes."""
    if isinstance(column, FileColumn):
        return [] if column.paths is names else column.paths.hashed
    shapes = [] if column.array is None or column.array.shapes is None else [column.array.shapes]
    return [*column.files.hashed, column.file, column.length, *shapes]
