"""Finds out which column of a table holds the labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpupipe.dataset import labels
from gpupipe.errors import DataError
from gpupipe.init.names import PART_WORDS, name_some

_NAMES = (
    *("label", "labels", "class", "classes", "target", "targets", "category", "species", "y"),
    *("class_name", "category_name", "label_name", "label_id", "class_id", "category_id"),
)
_FEW = 1000
"""Upper limit of classes for a column whose name does not say that it holds labels."""


@dataclass
class LabelChoice:
    """How the labels of a table are read.

    Attributes:
        label: The column of labels; None if there is none.
        values: Columns of numbers to deliver instead.
        notes: What is not certain.
        fault: Why the column cannot hold labels, or "".
    """

    label: str | None = None
    values: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fault: str = ""


def find_label_name(names: Iterable[str]) -> str | None:
    """Return the name that is most likely that of labels; None if none is."""
    by_name = {name.lower(): name for name in reversed(list(names))}
    return next((by_name[name] for name in _NAMES if name in by_name), None)


def choose_label(table: Mapping[str, Sequence[str]], path: str) -> LabelChoice:
    """Choose the column of labels of a table.

    Args:
        table: Its columns.
        path: The column with the paths of the files.
    """
    others = {name: texts for name, texts in table.items() if name != path}
    label = find_label_name(others)
    if label is not None:
        return _check(label, others[label])
    few = [name for name, texts in others.items() if _holds_classes(texts)]
    # Several columns of numbers may count or measure something, or be answers to several questions.
    numbers = [name for name in few if others[name][0].isdigit()]
    few = [name for name in few if name not in numbers] or (numbers if len(numbers) == 1 else [])
    if not few:
        return LabelChoice(notes=[_explain_no_label(others)])
    names = name_some(dict.fromkeys(others[few[0]]))
    note = f"the column '{few[0]}' is taken for the labels, since it has few values ({names})"
    rest = f"; so has {' and '.join(few[1:])}." if few[1:] else "; else set data.label."
    return LabelChoice(few[0], notes=[note + rest])


def _holds_classes(texts: Sequence[str]) -> bool:
    distinct = set(texts)
    if not 2 <= len(distinct) <= min(_FEW, len(texts) // 2):
        return False
    return not holds_parts(texts) and not _find_fault(texts)


def holds_parts(texts: Sequence[str]) -> bool:
    """Whether a column says which part of the data set a sample is in, such as train."""
    return bool(texts) and {text.lower() for text in set(texts)} <= PART_WORDS


def _check(label: str, texts: Sequence[str]) -> LabelChoice:
    """Return a column called labels; as values if it holds numbers that are no classes."""
    fault = _find_fault(texts)
    if fault and not all(map(_is_number, texts)):
        return LabelChoice(label, fault=f"the column '{label}': {fault}")
    if fault:
        note = (
            f"the column '{label}' holds numbers that are no classes: a batch has them as values."
        )
        return LabelChoice(None, [label], [note])
    if _has_captions(texts):
        return LabelChoice(notes=[_explain_captions(label, texts)])
    return LabelChoice(label)


def _find_fault(texts: Sequence[str]) -> str:
    """Say why texts cannot be labels; "" if they can."""
    try:
        labels.from_texts(texts, lambda row: f"row {row + 1:,}")
    except DataError as e:
        return str(e)
    return ""


def _explain_no_label(table: Mapping[str, Sequence[str]]) -> str:
    captions = next((name for name, texts in table.items() if _has_captions(texts)), None)
    if captions is not None:
        return _explain_captions(captions, table[captions])
    numbers = [name for name, texts in table.items() if all(map(_is_number, texts))]
    hint = f" For numbers in a batch write 'values: [{', '.join(numbers)}]'." if numbers else ""
    there = f": there are {name_some(table)}" if table else ""
    return f"no column looks like labels{there}.{hint}"


def _explain_captions(name: str, texts: Sequence[str]) -> str:
    return (
        f"the column '{name}' has {len(set(texts)):,} different texts in {len(texts):,} rows, as "
        f"captions have, and is not read; if they are names of classes, write 'label: {name}'."
    )


def _has_captions(texts: Sequence[str]) -> bool:
    """Whether nearly all texts differ, and most are of several words."""
    num_long = sum(text.count(" ") >= 2 for text in texts)
    return 10 * len(set(texts)) > 9 * len(texts) and 2 * num_long > len(texts)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
