"""Labels as data sets write them, and the classes that they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, shown

MOST_CLASSES = 10_000_000
"""Every number up to the largest label is a class with a name: a sample's id in the label's place
must not fill the memory. So many take 0.7 GB.
"""

Where = Callable[[int], str]
"""How a message names a sample, by its number."""

_WHOLE = re.compile(r"-?[0-9]+")
_FRACTION = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def none(count: int) -> tuple[NDArray[np.int64], list[str]]:
    """Of samples without labels: all 0, of the one class "0"."""
    return np.zeros(count, np.int64), ["0"]


def of_texts(labels: Sequence[str], where: Where) -> tuple[NDArray[np.int64], list[str]]:
    """Labels int64 (N,), and the names of the classes: whole numbers stay as they are (class 7 is
    called "7"), names are numbered in sorted order.

    Raises DataError where one is of another kind than the first, or can be no label.
    """
    distinct = list(dict.fromkeys(labels))
    numbers = bool(_WHOLE.fullmatch(distinct[0]))
    for label in distinct:
        wrong = _complaint(label, numbers)
        if wrong:
            raise DataError(f"{where(labels.index(label))}: {wrong}")
    numbered = (
        {label: int(label) for label in distinct}
        if numbers
        else {label: i for i, label in enumerate(sorted(distinct))}
    )
    found = np.fromiter(map(numbered.__getitem__, labels), np.int64, len(labels))
    return found, _counted(found) if numbers else list(numbered)


def of_numbers(labels: NDArray[np.int64], where: Where) -> tuple[NDArray[np.int64], list[str]]:
    """The same of labels that are numbers already, int64 (N,)."""
    outside = np.flatnonzero((labels < 0) | (labels >= MOST_CLASSES))
    if len(outside):
        raise DataError(f"{where(int(outside[0]))}: {_complaint(str(labels[outside[0]]), True)}")
    return labels, _counted(labels)


def _counted(labels: NDArray[np.int64]) -> list[str]:
    return [str(i) for i in range(int(labels.max()) + 1)]


def _complaint(label: str, numbers: bool) -> str:
    """What is wrong with a label among numbers, or among names; "" where nothing is."""
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
    if numbers and (
        len(label) > 18 or int(label) >= MOST_CLASSES
    ):  # Python itself refuses to read thousands of digits
        return (
            f"the label {shown(label)} is too large: a number is that of a class, below "
            f"{MOST_CLASSES:,}"
        )
    return ""
