"""Labels, numbers, texts and lists in the columns of pyarrow tables."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats.arrow_lists import find_top_column, read_arrow_lists
from gpupipe.formats.list_values import ListPlace, ListValues, join_lists


def read_texts(array: Any, column: str, wanted: str = "paths") -> list[str]:
    """Return a column of strings as a list; decode bytes as os.fsdecode does.

    Args:
        array: The pyarrow array of the column.
        column: The name of the column, for messages.
        wanted: A description of the values that the column should hold, for messages.

    Raises:
        ValueError: The column holds neither strings nor bytes, or a row has no value.
    """
    import pyarrow as pa

    kind = _find_kind(array, column)
    if kind not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        raise ValueError(f"the column '{column}' holds {kind}, but should hold {wanted}")
    return list(map(os.fsdecode, array.cast(kind).cast(pa.large_binary()).to_pylist()))


def read_labels(array: Any, column: str) -> list[str] | NDArray[np.int64]:
    """Return a column of labels: int64 (N,) for whole numbers, a list for names.

    Raises:
        ValueError: The column holds neither whole numbers nor names, a row has no label, or a
            number is beyond int64.
    """
    import pyarrow as pa

    wanted = "whole numbers or names: set data.label to another column, or to null"
    if pa.types.is_integer(_find_kind(array, column)):
        return _cast(array, pa.int64(), column, wanted)
    return read_texts(array, column, wanted)


def read_numbers(
    array: Any, column: str, wanted: str = "numbers: leave it out of data.values"
) -> NDArray[Any]:
    """Return a column of numbers as int64 or float64 (N,).

    Args:
        array: The pyarrow array of the column.
        column: The name of the column, for messages.
        wanted: A description of the values that the column should hold, for messages.

    Raises:
        ValueError: The column is not numeric, a row has no value, or a number is beyond int64.
    """
    import pyarrow as pa

    kind = _find_kind(array, column)
    is_whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if not (is_whole or pa.types.is_floating(kind)):
        raise ValueError(f"the column '{column}' holds {kind}, but should hold {wanted}")
    return _cast(array.cast(kind), pa.int64() if is_whole else pa.float64(), column, wanted)


def _cast(array: Any, kind: Any, column: str, wanted: str) -> NDArray[Any]:
    """Convert a column of numbers to a pyarrow type, and return it as a NumPy array.

    Raises ValueError if a number does not fit.
    """
    import pyarrow as pa

    try:
        return np.asarray(array.cast(kind))
    except pa.ArrowInvalid as e:
        raise ValueError(f"the column '{column}' ({e}) should hold {wanted}") from e


def _find_kind(array: Any, column: str) -> Any:
    """Return the pyarrow type of a column's values. Raises ValueError if a row has no value."""
    import pyarrow as pa

    if array.null_count:
        raise ValueError(f"a row has no value in the column '{column}': fill it in")
    return array.type.value_type if pa.types.is_dictionary(array.type) else array.type


@dataclass
class LabelsAndValues:
    """Collects labels and values of rows, one table or record batch at a time.

    Attributes:
        label: The name of the column of labels; None if there are no labels.
        values: Maps the name of each value to the name of its column.
        lists: Maps the name of each list to its place.
        labels: The labels of each table so far, as `read_labels` returns them.
        numbers: Maps the name of each value to a list with its numbers in each table so far, int64
            or float64 (N,).
        list_parts: Maps the name of each list to its values in each table so far.
    """

    label: str | None
    values: Mapping[str, str]
    lists: Mapping[str, ListPlace] = field(default_factory=dict)
    labels: list[Any] = field(default_factory=list)
    numbers: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    list_parts: dict[str, list[ListValues]] = field(default_factory=lambda: defaultdict(list))

    def find_columns(self, names: Sequence[str]) -> list[str]:
        """Return which of a table's columns to read, without duplicates.

        Raises ValueError if the table lacks the column of a list.
        """
        label = [] if self.label is None else [self.label]
        tops = [find_top_column(names, path) for path, *_ in self.lists.values()]
        return list(dict.fromkeys([*label, *self.values.values(), *tops]))

    def add(self, rows: Any) -> None:
        """Append the labels and values of a pyarrow table or record batch.

        Raises ValueError if a column has the wrong type, or a row has no value.
        """
        if self.label is not None:
            self.labels.append(read_labels(rows.column(self.label), self.label))
        for name, column in self.values.items():
            self.numbers[name].append(read_numbers(rows.column(column), column))
        for name, place in self.lists.items():
            self.list_parts[name].append(read_arrow_lists(rows, *place))

    def join_lists(self, others: "Iterable[LabelsAndValues]" = ()) -> dict[str, ListValues]:
        """Return a dict from each list's name to its values: those here, then those of `others`.

        At least one table must have been added to one of the objects. Raises ValueError if some
        tables hold texts, and others numbers.
        """
        every = [self, *others]
        return {
            name: join_lists([part for one in every for part in one.list_parts[name]], place.path)
            for name, place in self.lists.items()
        }

    def join_values(self, others: "Iterable[LabelsAndValues]" = ()) -> dict[str, NDArray[Any]]:
        """Return a dict from each value's name to its numbers: those here, then those of `others`.

        At least one table must have been added to one of the objects.
        """
        every = [self, *others]
        return {
            name: np.concatenate([part for one in every for part in one.numbers[name]])
            for name in self.values
        }
