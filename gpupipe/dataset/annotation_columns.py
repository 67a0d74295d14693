"""Columns of annotations in an index: each sample has any number of rows, such as boxes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Rows


@dataclass(frozen=True)
class AnnotationColumn:
    """The rows of all samples of one field, such as all boxes of a data set.

    Sample i has the rows `values[offsets[i] : offsets[i + 1]]`. The arrays may be memory-mapped.

    Attributes:
        kind: "boxes", "points" or "array".
        of: The field of the image whose canvas the coordinates follow.
        rows_with: The field that has a row for each row of this one, such as "boxes" for labels.
            Both lose the same rows. "" if this field has rows of its own.
        values: The rows of all samples, (sum N, ...): boxes (sum N, 4) float32 or float64 as
            [left, top, right, bottom] in pixels of the stored image; points (sum N, K, 2) as [x, y]
            for K points in a row; numbers (sum N, ...).
        offsets: Where the rows of each sample begin, and where the last ones end, int64 (N + 1,)
            for N samples. None if `rows_with` names another field, which has the offsets.
        is_normalized: Whether coordinates are fractions of the stored image's width and height, in
            place of pixels.
    """

    kind: str
    of: str
    rows_with: str
    values: NDArray[Any]
    offsets: NDArray[np.int64] | None
    is_normalized: bool = False


Annotations = Mapping[str, AnnotationColumn]


def offsets_of(columns: Annotations, name: str) -> NDArray[np.int64]:
    """Return the offsets of a field, int64 (rows + 1,): its own, or those of its `rows_with`."""
    column = columns[name]
    offsets = column.offsets if column.offsets is not None else columns[column.rows_with].offsets
    assert offsets is not None, "rows_with names a field that has rows of its own"
    return offsets


def find_positions(
    offsets: NDArray[np.int64], rows: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the rows of some samples are, and their offsets once they are taken.

    Args:
        offsets: The offsets of all samples.
        rows: The samples to take, int64 (B,).

    Returns:
        The positions in `values`, int64 (sum n,), and the new offsets, int64 (B + 1,).
    """
    first = np.asarray(offsets[rows])
    counts = offsets[rows + 1] - first
    taken = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=taken[1:])
    positions = np.arange(taken[-1]) + np.repeat(first - taken[:-1], counts)
    return positions, taken


def take_annotations(columns: Annotations, rows: Rows) -> dict[str, AnnotationColumn]:
    """Return columns that have only the given samples, in the order of `rows`."""
    found = {
        name: find_positions(offsets_of(columns, name), rows)
        for name, column in columns.items()
        if column.offsets is not None
    }
    taken = {}
    for name, column in columns.items():
        positions, offsets = found[column.rows_with or name]
        own = None if column.offsets is None else offsets
        taken[name] = replace(column, values=column.values[positions], offsets=own)
    return taken


def join_annotations(parts: Sequence[Annotations]) -> dict[str, AnnotationColumn]:
    """Concatenate the columns of several indexes, which have the same fields."""
    joined = {}
    for name, column in parts[0].items():
        values = np.concatenate([part[name].values for part in parts])
        own = [offsets for part in parts if (offsets := part[name].offsets) is not None]
        offsets = None
        if own:
            counts = np.concatenate([np.diff(one) for one in own])
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        joined[name] = replace(column, values=values, offsets=offsets)
    return joined


def scale_to_pixels(
    columns: Annotations, image: str, sizes: NDArray[np.int64]
) -> dict[str, AnnotationColumn]:
    """Return columns with pixels in place of fractions of an image.

    Args:
        columns: The rows of some samples.
        image: The field of the image.
        sizes: [height, width] of each sample's stored image, (B, 2).
    """
    scaled = dict(columns)
    for name, column in columns.items():
        if column.is_normalized and column.of == image:
            counts = np.diff(offsets_of(columns, name))
            sides = np.repeat(sizes[:, ::-1], counts, axis=0).astype(np.float64)
            factor = np.tile(sides, 2) if column.kind == "boxes" else sides[:, None, :]
            values = column.values.astype(np.float64) * factor
            scaled[name] = replace(column, values=values, is_normalized=False)
    return scaled


def explain_inconsistency(columns: Annotations, count: int) -> str:
    """Return why the columns of an index of `count` samples are invalid; "" if they are valid.

    It checks offsets and shapes, and reads no value.
    """
    for name, column in columns.items():
        owner = columns.get(column.rows_with or name)
        if owner is None or owner.offsets is None or (column.offsets is None) == (owner is column):
            return f"'{name}' goes with '{column.rows_with}', which has no rows of its own"
        offsets = owner.offsets
        if len(offsets) != count + 1 or int(offsets[0]) or bool((offsets[1:] < offsets[:-1]).any()):
            return f"the offsets of '{name}' do not ascend from 0, one more than {count} samples"
        if int(offsets[-1]) != len(column.values):
            return f"'{name}' has {len(column.values)} rows, and its offsets end at {offsets[-1]}"
        last = column.values.shape[1:][-1:]
        wanted = {"boxes": (4,), "points": (2,)}.get(column.kind, last)
        if last != wanted:
            return f"'{name}' has rows of shape {column.values.shape[1:]}, but is {column.kind}"
    return ""
