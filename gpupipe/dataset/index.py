"""The index of a data set, a table with one row per sample.

The columns of an Index are arrays, often memory-mapped, so that ten million rows need no Python
objects.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.annotation_columns import AnnotationColumn, take_annotations
from gpupipe.dataset.annotation_faults import FaultCollector, Faults
from gpupipe.dataset.columns import Column, Rows, StringArray
from gpupipe.dataset.file_columns import FileColumn, SpanColumn
from gpupipe.errors import StandInWarning, counted


@dataclass(frozen=True, repr=False)
class Index:
    """The samples of a data set: a table of N rows.

    Attributes:
        root: The folder or URL of the data. It may be empty.
        names: The name of each sample, used in messages and in the fingerprint.
        labels: The number of each sample's class, int64 (N,); all -1 if samples have no class.
        classes: The names of the classes, of samples or of boxes.
        columns: Maps the name of each field, such as "image" or "mask", to the Column that reads
            its bytes. Steps work on the first field by default, and messages name its location.
        fingerprint: A hash of the samples. A resume requires equal fingerprints.
        values: Maps the name of each value to its numbers, (N,) or (N, n). Batches contain these
            numbers unchanged.
        note: A remark that every output shows, such as "stand-in data, not LFW"; "" for none.
        warning: The text of the warning that load() issues; "" for none.
        extra: Facts that a source or the cache saves with the index. Plain JSON.
        annotations: Maps the name of each field of annotations, such as "boxes" or "labels", to its
            column. Their coordinates go through the steps of their image.
        sizes: [height, width] of each stored image in pixels, int32 (N, 2), by field of images,
            where the source knows them. A file of another size is a broken sample.
        faults: The samples whose annotations cannot be used, which are broken samples.
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
    annotations: dict[str, AnnotationColumn] = field(default_factory=dict)
    sizes: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults.none)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def summary(self) -> str:
        """One line about the index: `2,000 samples in 416 classes (stand-in data, not LFW)`."""
        note = f" ({self.note})" if self.note else ""
        return f"{counted(len(self), 'sample')} {self.describe_classes()}{note}"

    def describe_classes(self) -> str:
        """Return "in 416 classes", "without labels", or "with labels" that samples bring along."""
        if self.classes or not len(self):
            return f"in {counted(len(self.classes), 'class', 'classes')}"
        return "with labels" if "label" in self.columns else "without labels"

    def __repr__(self) -> str:
        fields = ", ".join([*self.columns, *self.annotations, *self.values])
        return f"<Index of {self.root}: {self.summary}, {fields}>"

    @property
    def warning_category(self) -> type[Warning]:
        """The category of `warning`: StandInWarning for stand-in data, which have a note."""
        return StandInWarning if self.note else UserWarning

    @property
    def has_labels(self) -> bool:
        """Whether each sample has a class of its own, which batches deliver as "label"."""
        return not len(self.labels) or int(self.labels[0]) >= 0

    @property
    def is_growing(self) -> bool:
        """Whether samples come and go, so that their ids are not 0 to len - 1; see `resolve`."""
        return False

    def resolve(self, ids: Rows) -> "tuple[Index, Rows]":
        """Return an index of arrays, and the rows in it of the samples `ids`.

        Here they are this index and `ids`: an id is a row. If samples come and go, ids stay what
        they are, and rows change.
        """
        return self, ids

    def ids_of(self, rows: Rows) -> Rows:
        """Return the ids of the samples in rows 0 to len - 1, int64 (n,). Here they are the rows.

        Commands that need some samples, whichever, take them from here.
        """
        return rows

    @property
    def main(self) -> str:
        """The name of the first field."""
        return next(iter(self.columns))

    def read(self, i: int, field: str | None = None) -> NDArray[np.uint8]:
        """Return the bytes of a field of row i; by default, of the first field.

        Raises:
            OSError, ValueError: The bytes cannot be read.
        """
        return self.columns[field or self.main].read(np.array([i]))[0]

    def location(self, i: int, field: str | None = None) -> str:
        """Return where row i is, for messages: FILE, or FILE:NAME in a file of several samples.

        Args:
            i: The row.
            field: The field whose bytes are located; by default, the first.
        """
        return self.columns[field or self.main].location(i, self.names[i])

    def has_same_samples(self, other: "Index") -> bool:
        """Return whether the first field of every row has the same location in both indexes."""
        have_names = len(self.names) and len(other.names)  # A server's index comes without names.
        if len(self) != len(other) or not (have_names or self.fingerprint == other.fingerprint):
            return False
        return all(self.location(i) == other.location(i) for i in range(len(self)))

    def subset(self, rows: Rows) -> "Index":
        """Return an index of the chosen rows only, in their order, with a new fingerprint."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        values = {name: array[rows] for name, array in self.values.items()}
        names, labels = [self.names[int(i)] for i in rows], self.labels[rows]
        part = build(
            self.root,
            names,
            labels,
            self.classes,
            columns=columns,
            values=values,
            annotations=take_annotations(self.annotations, rows),
            sizes={name: sizes[rows] for name, sizes in self.sizes.items()},
        )
        faults = self.faults.take(rows)
        return replace(part, note=self.note, warning=self.warning, faults=faults)


def build(
    root: str,
    names: Sequence[str] | StringArray,
    labels: NDArray[np.int64] | None,
    classes: list[str],
    extra: dict[str, Any] | None = None,
    columns: dict[str, Column] | None = None,
    values: dict[str, NDArray[Any]] | None = None,
    annotations: dict[str, AnnotationColumn] | None = None,
    sizes: dict[str, NDArray[np.int32]] | None = None,
) -> Index:
    """Build an index and compute its fingerprint.

    Args:
        root: The folder of the data.
        names: The name of each sample. Without `columns`, these are the paths of image files
            relative to `root`.
        labels: The class of each sample as a position in `classes`, int64 (N,); None if samples
            have no class. Batches then have no "label".
        classes: The names of the classes.
        extra: Plain JSON that is saved with the index.
        columns: Maps the name of each field to the Column that reads its bytes. By default there
            is one field, "image", with the files at `names`.
        values: Maps the name of each value to its numbers, (N,) or (N, n). Batches contain these
            numbers unchanged.
        annotations: Maps the name of each field of annotations to its column.
        sizes: [height, width] of each stored image in pixels, int32 (N, 2), by field of images.
    """
    texts = names if isinstance(names, StringArray) else StringArray.from_strings(names)
    columns = columns or {"image": FileColumn(root, texts)}
    if labels is None:
        labels = np.full(len(texts), -1, np.int64)
    values, annotations = values or {}, annotations or {}
    fingerprint = compute_fingerprint(texts, labels, classes, columns, values, annotations)
    return Index(
        root,
        texts,
        labels,
        classes,
        columns,
        fingerprint,
        values,
        extra=extra or {},
        annotations=annotations,
        sizes=sizes or {},
    )


def add_annotations(
    index: Index,
    annotations: dict[str, AnnotationColumn],
    faults: FaultCollector,
    classes: list[str],
) -> Index:
    """Return an index with annotations, their faults, and another fingerprint."""
    fingerprint = compute_fingerprint(
        index.names, index.labels, classes, index.columns, index.values, annotations
    )
    return replace(
        index,
        annotations=annotations,
        classes=classes,
        fingerprint=fingerprint,
        faults=faults.join(),
        extra=index.extra | {"annotation_faults": faults.counts},
    )


def build_empty() -> Index:
    """Return an index without samples, a placeholder for data that is not there yet."""
    return build("", [], np.empty(0, np.int64), [])


def spans_of(index: Index, field: str) -> SpanColumn:
    """Return the SpanColumn of a field. The caller must know that the column is one."""
    column = index.columns[field]
    assert isinstance(column, SpanColumn)
    return column


def compute_fingerprint(
    names: StringArray,
    labels: NDArray[np.int64],
    classes: list[str],
    columns: dict[str, Column],
    values: dict[str, NDArray[Any]],
    annotations: Mapping[str, AnnotationColumn] = MappingProxyType({}),
) -> str:
    """Return a hash of the samples, 128-bit BLAKE2b in hexadecimal. For arguments, see `build`."""
    digest = hashlib.blake2b(json.dumps(classes).encode(), digest_size=16)
    for array in (*names.fingerprint_parts, labels):
        digest.update(array.tobytes())
    for name, column in columns.items():
        for array in column.fingerprint_parts(names):
            digest.update(name.encode() + array.tobytes())
        if column.array is not None:
            digest.update(json.dumps([column.array.dtype, column.array.shape]).encode())
    for name, array in values.items():
        digest.update(name.encode() + array.dtype.str.encode() + array.tobytes())
    for name, annotation in annotations.items():
        parts = [name, annotation.kind, annotation.of, annotation.rows_with]
        parts += ["normalized"] * annotation.is_normalized
        digest.update(json.dumps([*parts, annotation.values.dtype.str]).encode())
        for part in (annotation.values, annotation.offsets):
            if part is not None:
                digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
