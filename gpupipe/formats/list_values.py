"""Lists in the rows of a table, such as the boxes of each image; from JSON here.

A column is named by a path: "objects.bbox" is the member `bbox` of the struct, or of each struct in
the list, in the column `objects`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean, shown

_INT64 = range(-(2**63), 2**63)


class ListPlace(NamedTuple):
    """Which column holds lists, and what their items are.

    Attributes:
        path: The path of the column.
        width: The length of each item, such as 4 for boxes; 0 if the items are numbers or texts.
        group: The length of the lists in an item that is a list of lists with `width` numbers
            altogether, such as 3 for points [x, y, visibility]; 0 if items are lists of numbers.
    """

    path: str
    width: int
    group: int = 0


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


def read_json_lists(rows: Iterable[Any], path: str, width: int = 0, group: int = 0) -> ListValues:
    """Read the lists of a column from JSON values.

    Args:
        rows: The object of each row.
        path: The path of the column.
        width, group: See `ListPlace`.
    """
    items: list[Any] = []
    counts: list[int] = []
    faults: dict[int, str] = {}
    kind: type | None = None
    for number, row in enumerate(rows):
        try:
            found = [_check_item(item, width, group) for item in _walk(row, path)]
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


def _check_item(item: Any, width: int, group: int) -> Any:
    if width:
        if group and isinstance(item, list) and item and isinstance(item[0], list):
            wrong = next((one for one in item if not _is_list_of(one, group)), None)
            if wrong is not None:
                raise ValueError(f"{shown(wrong)} is no list of {group} numbers")
            item = list(chain.from_iterable(item))
        if not _is_list_of(item, width):
            raise ValueError(f"{shown(item)} is no list of {width} numbers")
        return [_check_number(number) for number in item]
    return item if isinstance(item, str) else _check_number(item, float_only=False)


def _is_list_of(item: Any, length: int) -> bool:
    return isinstance(item, list) and len(item) == length


def _check_number(value: Any, float_only: bool = True) -> int | float:
    if type(value) is float or (type(value) is int and value in _INT64):
        return float(value) if float_only else value
    raise ValueError(f"{shown(value)} is no number")
