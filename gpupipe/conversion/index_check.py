"""Compares the index of shards with that of the source: labels, names of classes and numbers."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpupipe.conversion.plan import LABEL, StoragePlan
from gpupipe.dataset.annotation_columns import offsets_of, take_annotations
from gpupipe.dataset.index import Index
from gpupipe.dataset.list_columns import LABELS


def explain_difference(
    plan: StoragePlan, index: Index, rows: NDArray[np.int64], other: Index
) -> str:
    """Return how the index of shards differs from that of the source; "" if it does not.

    Args:
        plan: How samples are stored.
        index: The index of the source.
        rows: The rows of the source that are in the shards, in order.
        other: The index of the shards.
    """
    return next(_iterate_differences(plan, index, rows, other), "")


def _iterate_differences(
    plan: StoragePlan, index: Index, rows: NDArray[np.int64], other: Index
) -> Iterator[str]:
    if len(other) != len(rows):
        yield f"the shards hold {len(other):,} samples, and the source {len(rows):,}"
        return
    if LABEL not in index.columns:
        if not np.array_equal(other.labels, index.labels[rows]):
            yield "the labels differ from those of the source"
        if (plan.has_label or LABELS in plan.lists) and other.classes != index.classes:
            yield "the names of the classes differ from those of the source"
    for name in plan.values:
        values, others = index.values[name][rows], other.values[name]
        is_float = values.dtype.kind == "f"
        if others.dtype != values.dtype or not np.array_equal(others, values, equal_nan=is_float):
            yield f"the value '{name}' differs from that of the source"
    columns, stored_columns = take_annotations(index.annotations, rows), other.annotations
    for name, column in columns.items():
        stored = stored_columns[name]
        is_array = column.kind == "array"
        if plan.options.max_side is not None and not is_array:
            continue  # they fit the smaller images
        values = column.values.astype(stored.values.dtype)
        if not np.array_equal(stored.values, values):
            yield f"'{name}' differs from that of the source"
        if not np.array_equal(offsets_of(stored_columns, name), offsets_of(columns, name)):
            yield f"'{name}' has other rows than in the source"
