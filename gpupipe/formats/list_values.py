"""Lists in the rows of a table, such as the boxes of each image, from Arrow columns or from JSON.

A column is named by a path: "objects.bbox" is the member `bbox` of the struct, or of each struct in
the list, in the column `objects`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean, shown

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class ListValues:
    """The lists of N rows, with M items altogether.

    Attributes:
        values: The items, int64, float64 (M,) or (M, width); or texts.
        counts: How many items each row has, int64 (N,).
        faults: Why the list of a row cannot be used, by row. Such a row counts as empty.
    """

    values: NDArray[Any] | list[str]
    counts: NDArray[np.int64]
    faults: dict[int, str]


def join_lists(parts: Sequence[ListValues], column: str) -> ListValues:
    """Concatenate the lists of several tables.

    Raises:
        ValueError: Some tables hold texts, and others numbers.
    """
    filled = [part.values for part in parts if len(part.values)] or [parts[0].values]
    texts = [values for values in filled if isinstance(values, list)]
    if texts and len(texts) < len(filled):
        raise ValueError(
            f"the lists of '{column}' hold texts and numbers: they must be of one kind"
        )
    faults: dict[int, str] = {}
    first = 0
    for part in parts:
        faults |= {row + first: reason for row, reason in part.faults.items()}
        first += len(part.counts)
    values = list(chain.from_iterable(texts)) if texts else np.concatenate(filled)
    return ListValues(values, np.concatenate([part.counts for part in parts]), faults)


def read_json_lists(rows: Iterable[Any], path: str, width: int) -> ListValues:
    """Read the lists of a column from JSON values.

    Args:
        rows: The object of each row.
        path: The path of the column.
        width: The length of each item, such as 4 for boxes; 0 if the items are numbers or texts.
    """
    items: list[Any] = []
    counts: list[int] = []
    faults: dict[int, str] = {}
    kind: type | None = None
    for number, row in enumerate(rows):
        try:
            found = [_check_item(item, width) for item in _walk(row, path)]
            for item in found:
                kind = kind or (str if isinstance(item, str) else float)
                if isinstance(item, str) != (kind is str):
                    raise ValueError(f"{shown(item)} is {'a text' if kind is float else 'no text'}")
        except ValueError as e:
            found, faults[number] = [], f"'{path}': {e}"
        items += found
        counts.append(len(found))
    lengths = np.array(counts, np.int64)
    if kind is str:
        return ListValues(items, lengths, faults)
    is_whole = not width and all(isinstance(item, int) for item in items)
    values = np.array(items, np.int64 if is_whole else np.float64)
    return ListValues(values.reshape(-1, width) if width else values, lengths, faults)


def _walk(value: Any, path: str) -> list[Any]:
    """Return the list at a path. Raises ValueError if there is none."""
    for name in path.split("."):
        if isinstance(value, list):
            value = [_get(item, name) for item in value]
        else:
            value = _get(value, name)
    if not isinstance(value, list):
        raise ValueError(f"{shown(value)} is no list")
    return value


def _get(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} has no '{name}'")
    if name not in value:
        raise ValueError(f"no '{name}'{did_you_mean(name, map(str, value))}")
    return value[name]


def _check_item(item: Any, width: int) -> Any:
    if width:
        if not isinstance(item, list) or len(item) != width:
            raise ValueError(f"{shown(item)} is no list of {width} numbers")
        return [_check_number(number) for number in item]
    return item if isinstance(item, str) else _check_number(item, float_only=False)


def _check_number(value: Any, float_only: bool = True) -> int | float:
    if type(value) is float or (type(value) is int and value in _INT64):
        return float(value) if float_only else value
    raise ValueError(f"{shown(value)} is no number")


def read_arrow_lists(table: Any, path: str, width: int) -> ListValues:
    """Read the lists of a column from a pyarrow table or record batch.

    Args:
        table: The pyarrow.Table or RecordBatch.
        path: The path of the column.
        width: The length of each item, such as 4 for boxes; 0 if the items are numbers or texts.

    Raises:
        ValueError: There is no such column, or it holds no lists of numbers or texts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = _find_lists(table, path)
    is_missing = np.asarray(pc.is_null(lists))
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    faults = {int(row): f"'{path}': empty is no list" for row in np.flatnonzero(is_missing)}
    items = lists.flatten()
    if not width:
        kind = items.type.value_type if pa.types.is_dictionary(items.type) else items.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            texts = items.to_pylist()
            is_text = np.array([text is not None for text in texts], bool)
            return _drop_rows(texts, counts, faults, ~is_text, lambda n: f"'{path}': no text")
        return ListValues(_to_numbers(items, path), counts, faults)
    if not _is_list(items.type):
        raise ValueError(f"the column '{path}' holds {lists.type}, and no lists of lists")
    lengths = np.asarray(pc.fill_null(pc.list_value_length(items), 0))
    values = np.full((len(items), width), np.nan)
    is_whole = lengths == width
    values[is_whole] = _to_numbers(items.filter(pa.array(is_whole)).flatten(), path).reshape(
        -1, width
    )
    return _drop_rows(
        values,
        counts,
        faults,
        ~is_whole,
        lambda n: f"'{path}': {lengths[n]} numbers in place of {width}",
    )


def _drop_rows(
    values: NDArray[Any] | list[str],
    counts: NDArray[np.int64],
    faults: dict[int, str],
    is_wrong: NDArray[np.bool_],
    explain: Callable[[int], str],
) -> ListValues:
    """Return lists in which rows with a wrong item are faults, and empty.

    Args:
        values: The items.
        counts: How many items each row has, int64 (N,).
        faults: The faults so far; the function adds to them.
        is_wrong: Whether each item is wrong, bool (M,).
        explain: Maps the number of an item to what is wrong.
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    for number in np.flatnonzero(is_wrong)[::-1]:
        faults[int(rows[number])] = explain(int(number))
    is_good = np.ones(len(counts), bool)
    is_good[list(faults)] = False
    is_kept = is_good[rows]
    kept = (
        [value for value, is_there in zip(values, is_kept, strict=True) if is_there]
        if isinstance(values, list)
        else values[is_kept]
    )
    return ListValues(kept, np.where(is_good, counts, 0), faults)


def find_top_column(names: Sequence[str], path: str) -> str:
    """Return the column of a table that a path leads into. Raises ValueError if there is none."""
    top = path if path in names else path.partition(".")[0]
    if top not in names:
        raise ValueError(f"has no column '{path}'{did_you_mean(top, names)}")
    return top


def _find_lists(table: Any, path: str) -> Any:
    """Return the pyarrow list array at a path."""
    import pyarrow as pa
    import pyarrow.compute as pc

    top = find_top_column(table.schema.names, path)
    array = table.column(top)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if isinstance(array, pa.ChunkedArray):  # of no chunks, in some versions
        array = pa.array([], array.type)
    for name in path[len(top) + 1 :].split(".") if path != top else ():
        inner = array.type.value_type if _is_list(array.type) else array.type
        if not pa.types.is_struct(inner) or inner.get_field_index(name) < 0:
            names = [field.name for field in inner] if pa.types.is_struct(inner) else []
            raise ValueError(f"'{path}': no '{name}' in {inner}{did_you_mean(name, names)}")
        if inner is array.type:
            array = pc.struct_field(array, name)
        else:
            counts = pc.fill_null(pc.list_value_length(array), 0)
            offsets = np.concatenate([[0], np.cumsum(np.asarray(counts))]).astype(np.int32)
            values = pc.struct_field(array.flatten(), name)
            array = pa.ListArray.from_arrays(pa.array(offsets), values, mask=pc.is_null(array))
    if not _is_list(array.type):
        raise ValueError(f"the column '{path}' holds {array.type}, and no lists")
    return array


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _to_numbers(items: Any, path: str) -> NDArray[Any]:
    """Return a pyarrow array of numbers as int64 or float64, with NaN for a missing one."""
    import pyarrow as pa

    kind = items.type
    is_whole = (pa.types.is_integer(kind) or pa.types.is_boolean(kind)) and not items.null_count
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)):
        if pa.types.is_null(kind):
            return np.full(len(items), np.nan)
        raise ValueError(f"the lists of '{path}' hold {kind}, and no numbers or texts")
    try:
        return np.asarray(items.cast(pa.int64() if is_whole else pa.float64()))
    except pa.ArrowInvalid as e:
        raise ValueError(f"the lists of '{path}' hold a number beyond 64 bits: {e}") from e
