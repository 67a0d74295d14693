"""Turn labels as data sets write them into class numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, shown

MAX_CLASSES = 10_000_000
"""Upper limit of a label. Every number up to the largest label is a class with a name.

The limit keeps a sample's id in the label's place from filling the memory. At the limit, the names
take 0.7 GB.
"""

Where = Callable[[int], str]
"""Maps the number of a sample to its name in messages."""

_WHOLE = re.compile(r"-?[0-9]+")
_FRACTION = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def make_unlabelled(count: int) -> tuple[NDArray[np.int64], list[str]]:
    """Labels of `count` samples that have none: all 0, with the one class "0"."""
    return np.zeros(count, np.int64), ["0"]


def from_texts(labels: Sequence[str], where: Where) -> tuple[NDArray[np.int64], list[str]]:
    """Turn labels that are texts into class numbers.

    Whole numbers stay as they are: class 7 is called "7". Names are numbered in sorted order.

    Args:
        labels: The label of each sample.
        where: Names a sample in messages.

    Returns:
        The labels, int64 (N,), and the names of the classes.

    Raises:
        DataError: A label is not valid, or numbers and names are mixed.
    """
    distinct = list(dict.fromkeys(labels))
    numbers = bool(_WHOLE.fullmatch(distinct[0]))
    for label in distinct:
        problem = _problem(label, numbers)
        if problem:
            raise DataError(f"{where(labels.index(label))}: {problem}")
    number_of = (
        {label: int(label) for label in distinct}
        if numbers
        else {label: i for i, label in enumerate(sorted(distinct))}
    )
    ids = np.fromiter(map(number_of.__getitem__, labels), np.int64, len(labels))
    return ids, _class_names(ids) if numbers else list(number_of)


def from_numbers(labels: NDArray[np.int64], where: Where) -> tuple[NDArray[np.int64], list[str]]:
    """The same as `from_texts`, for labels that are numbers already, int64 (N,)."""
    outside = np.flatnonzero((labels < 0) | (labels >= MAX_CLASSES))
    if len(outside):
        raise DataError(f"{where(int(outside[0]))}: {_problem(str(labels[outside[0]]), True)}")
    return labels, _class_names(labels)


def _class_names(labels: NDArray[np.int64]) -> list[str]:
    return [str(i) for i in range(int(labels.max()) + 1)]


def _problem(label: str, numbers: bool) -> str:
    """Say what is wrong with a label among numbers, or among names; "" if nothing is."""
    if not label or "\0" in label:
        return (
            "a NUL byte in the label: save it as UTF-8"
            if label
            else "the label is empty: label every sample"
        )
    if _FRACTION.fullmatch(label):
        return f"the label {label} is not a whole number"
    if bool(_WHOLE.fullmatch(label)) != numbers:
        first, this = ("whole number", "name") if numbers else ("name", "whole number")
        return (
            f"the label {shown(label)} is a {this}, but the first sample's is a {first}: labels "
            "are all of one kind"
        )
    if numbers and label.startswith("-"):
        return f"the label {shown(label)} is negative: labels count from 0"
    # The length is checked first: int() refuses thousands of digits.
    if numbers and (len(label) > 18 or int(label) >= MAX_CLASSES):
        return (
            f"the label {shown(label)} is too large: a number is that of a class, below "
            f"{MAX_CLASSES:,}"
        )
    return ""
