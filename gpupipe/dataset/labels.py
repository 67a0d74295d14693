"""Turns the labels of a data set, which are texts or numbers, into class numbers.

`SampleTexts` reads labels and values from the text and JSON members of a tar shard.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, shown
from gpupipe.formats.tar import Member
from gpupipe.schema.field_types import is_number

MAX_CLASSES = 10_000_000
"""Labels must be below this number. Every number up to the largest label gets a class name.

Without a limit, sample ids that were stored as labels would fill the memory. The names of ten
million classes take 0.7 GB.
"""

Where = Callable[[int], str]
"""A function that maps a sample's number to its location, for messages."""

_WHOLE = re.compile(r"-?[0-9]+")
_FRACTION = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def make_unlabelled(count: int) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels for `count` samples without a class, all -1, and no names of classes."""
    return np.full(count, -1, np.int64), []


def is_zero_free(classes: Sequence[str]) -> bool:
    """Return whether no class has the number 0, as where labels are COCO's ids of categories.

    Args:
        classes: The names of the classes, by label; "" for a number that is no class.
    """
    return bool(classes) and not classes[0]


def join_labels(parts: Sequence[list[str] | NDArray[np.int64]]) -> list[str] | NDArray[Any] | None:
    """Concatenate the labels of several parts; return None if there are no parts.

    The result is an array if all parts are arrays, else a list of texts.
    """
    if not parts:
        return None
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [str(label) for part in parts for label in part]


def number_classes(
    labels: Sequence[str] | NDArray[np.int64] | None, count: int, where: Where
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the class numbers of `count` samples, int64 (N,), and the names of the classes.

    Args:
        labels: The label of each sample, as texts or as numbers; None if there are no labels, as
            `make_unlabelled` says.
        count: The number of samples.
        where: Maps a sample's number to its location, for messages.

    Raises:
        DataError: A label is not valid.
    """
    if labels is None:
        return make_unlabelled(count)
    if isinstance(labels, np.ndarray):
        return from_numbers(labels, where)
    return from_texts(labels, where)


def from_texts(labels: Sequence[str], where: Where) -> tuple[NDArray[np.int64], list[str]]:
    """Turn labels that are texts into class numbers.

    Whole numbers stay as they are: class 7 is called "7", and so is 7.0. Names are
    numbered in sorted order.

    Args:
        labels: The label of each sample.
        where: Maps a sample's number to its location, for messages.

    Returns:
        The labels, int64 (N,), and the names of the classes.

    Raises:
        DataError: A label is not valid, or numbers and names are mixed.
    """
    labels = list(map(_drop_zero_fraction, labels))
    distinct = list(dict.fromkeys(labels))
    numbers = bool(_WHOLE.fullmatch(distinct[0]))
    for label in distinct:
        problem = _find_problem(label, numbers)
        if problem:
            raise DataError(f"{where(labels.index(label))}: {problem}")
    number_of = (
        {label: int(label) for label in distinct}
        if numbers
        else {label: i for i, label in enumerate(sorted(distinct))}
    )
    ids = np.fromiter(map(number_of.__getitem__, labels), np.int64, len(labels))
    return ids, _name_classes(ids) if numbers else list(number_of)


def _drop_zero_fraction(label: str) -> str:
    """Return "7" for "7.0", as tables of numbers write it; other labels as they are."""
    number, dot, fraction = label.partition(".")
    return number if dot and not fraction.strip("0") and _WHOLE.fullmatch(number) else label


def from_numbers(labels: NDArray[np.int64], where: Where) -> tuple[NDArray[np.int64], list[str]]:
    """Check labels that are numbers, int64 (N,); return them and the class names.

    Raises DataError if a label is negative or too large.
    """
    outside = np.flatnonzero((labels < 0) | (labels >= MAX_CLASSES))
    if len(outside):
        raise DataError(f"{where(int(outside[0]))}: {_find_problem(str(labels[outside[0]]), True)}")
    return labels, _name_classes(labels)


def _name_classes(labels: NDArray[np.int64]) -> list[str]:
    return [str(i) for i in range(int(labels.max()) + 1)]


def _find_problem(label: str, numbers: bool) -> str:
    """Return why a label is invalid; "" if it is valid. `numbers`: whether labels are numbers."""
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


_MAX_TEXT = 1 << 20
"""Maximum size in bytes of a tar member that holds a label or values."""
_MAX_VALUES = 1024


@dataclass(frozen=True)
class SampleTexts:
    """Reads the label and the values of one sample from its members in a tar shard.

    Attributes:
        data: The bytes of the shard.
        stem: The part of the members' names before the ending; it names the sample.
        parts: The members of the sample, by ending.
    """

    data: NDArray[np.uint8]
    stem: str
    parts: dict[str, Member]

    def read(self, where: str) -> Any:
        """Read the text of the member with the ending `where`, such as "cls".

        "json:label" reads the value of the key "label" in the JSON of the member "json".

        Raises:
            ValueError: There is no such member or key, or the member cannot be read.
        """
        ending, _, key = where.partition(":")
        return self._read_member(ending, key)

    def read_object(self, ending: str) -> Any:
        """Parse the JSON of the member with an ending.

        Raises:
            ValueError: There is no such member, or it cannot be read.
        """
        return self._read_member(ending, None)

    def _read_member(self, ending: str, key: str | None) -> Any:
        """Return the text of a member; with a key its value in the JSON; with None all of it."""
        member = self.parts.get(ending)
        if member is None:
            raise ValueError(
                f"{self.stem}: no member {self.stem}.{ending} (it has "
                f"{', '.join(sorted(self.parts))}): set data.label or data.values"
            )
        if member.size > _MAX_TEXT:
            raise ValueError(
                f"{member.name}: {member.size:,} bytes, too many for a label or values"
            )
        content = self.data[member.offset : member.offset + member.size].tobytes()
        try:
            if key is None:
                return json.loads(content)
            return json.loads(content)[key] if key else content.decode().strip()
        except KeyError as e:
            raise ValueError(f"{member.name}: no '{key}' in it") from e
        except (ValueError, TypeError, IndexError, RecursionError) as e:
            raise ValueError(
                f"{member.name}: cannot be read as "
                f"{'UTF-8 text' if key == '' else 'JSON with keys'}: {str(e)[:100]}"
            ) from e

    def read_numbers(self, where: str) -> list[int | float]:
        """Read the number or the list of numbers at `where`, such as "cls" or "json:box".

        Raises ValueError if `read` does, or if the value is no number and no list of 1 to 1,024
        numbers.
        """
        value = self.read(where)
        if isinstance(value, str):
            value = _parse_number(value)
        numbers = value if isinstance(value, list) else [value]
        if not 0 < len(numbers) <= _MAX_VALUES or not all(
            is_number(n) and (isinstance(n, float) or -(2**63) <= n < 2**63) for n in numbers
        ):
            raise ValueError(
                f"{self.stem}: {shown(value)} at {where} is no number, and no list of 1 to "
                f"{_MAX_VALUES:,} numbers: set data.values"
            )
        return numbers


def _parse_number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_label(texts: SampleTexts, where: str) -> str:
    """Read the label at `where`, such as "cls" or "json:label", and return it as text.

    Raises ValueError if there is no label, or it is neither a whole number nor a name.
    """
    label = texts.read(where)
    if isinstance(label, bool) or not isinstance(label, (int, str)) or label == "":
        raise ValueError(
            f"{texts.stem}: {shown(label)} at {where} is no label: a label is a number from "
            "0 on, or a name"
        )
    return str(label)


def stack_values(name: str, rows: Sequence[list[int | float]]) -> NDArray[Any]:
    """Stack the numbers of N samples into one array: (N,) if each has one number, else (N, n).

    The dtype is int64 if all numbers are of type int, else float64. Raises ValueError if samples
    do not all have the same count of numbers.
    """
    counts = {len(numbers) for numbers in rows}
    if len(counts) > 1:
        raise ValueError(
            f"the value '{name}' has from {min(counts)} to {max(counts)} numbers: it must "
            "have as many in each sample"
        )
    array = np.array(
        rows,
        np.int64 if all(isinstance(n, int) for numbers in rows for n in numbers) else np.float64,
    )
    return array[:, 0] if counts == {1} else array
