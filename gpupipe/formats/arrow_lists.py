"""Lists in the columns of pyarrow tables, such as the boxes of each image."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean
from gpupipe.formats.list_values import ListValues


def read_arrow_lists(table: Any, path: str, width: int = 0, group: int = 0) -> ListValues:
    """Read the lists of a column from a pyarrow table or record batch.

    Args:
        table: The pyarrow.Table or RecordBatch.
        path: The path of the column.
        width, group: See `ListPlace`.

    Raises:
        ValueError: There is no such column, or it holds no lists of numbers or texts. Lists that
            are all empty are accepted, though their Arrow type does not say what they hold.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = _find_lists(table, path)
    is_missing = np.asarray(pc.is_null(lists))
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    faults = {int(row): f"'{path}': empty is no list" for row in np.flatnonzero(is_missing)}
    items = lists.flatten()
    if width and pa.types.is_null(items.type):
        items = pa.nulls(len(items), pa.list_(pa.float64()))
    if not width:
        kind = items.type.value_type if pa.types.is_dictionary(items.type) else items.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            texts = items.to_pylist()
            is_text = np.array([text is not None for text in texts], bool)
            return _drop_rows(texts, counts, faults, ~is_text, lambda n: f"'{path}': no text")
        return ListValues(_to_numbers(items, path), counts, faults)
    if not _is_list(items.type):
        raise ValueError(f"the column '{path}' holds {lists.type}, and no lists of lists")
    is_uneven = np.zeros(len(items), bool)
    if group and _is_list(items.type.value_type):
        items, is_uneven = _join_groups(items, group)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(items), 0))
    values = np.full((len(items), width), np.nan)
    is_whole = (lengths == width) & ~is_uneven
    values[is_whole] = _to_numbers(items.filter(pa.array(is_whole)).flatten(), path).reshape(
        -1, width
    )
    return _drop_rows(
        values,
        counts,
        faults,
        ~is_whole,
        lambda n: (
            f"'{path}': an item has lists of other lengths than {group}"
            if is_uneven[n]
            else f"'{path}': {lengths[n]} numbers in place of {width}"
        ),
    )


def _join_groups(items: Any, group: int) -> tuple[Any, NDArray[np.bool_]]:
    """Join the lists in each item.

    Args:
        items: A pyarrow array of lists of lists.
        group: The length that the inner lists should have.

    Returns:
        The array of lists, and whether an item has inner lists of other lengths, bool (M,).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    inner = items.flatten()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(inner), 0)).astype(np.int64)
    counts = np.asarray(pc.fill_null(pc.list_value_length(items), 0)).astype(np.int64)
    item_of = np.repeat(np.arange(len(items)), counts)
    is_uneven = np.bincount(item_of[lengths != group], minlength=len(items)) > 0
    totals = np.bincount(item_of, lengths, len(items))
    offsets = np.concatenate([[0], np.cumsum(totals)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), inner.flatten()), is_uneven


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
        if pa.types.is_null(inner):  # no row of the table has an item
            break
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
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.list_(pa.null()))
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
