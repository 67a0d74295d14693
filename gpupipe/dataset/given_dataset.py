"""Data sets of the user's: any object with `__len__` and `__getitem__`, such as torch's Datasets.

The source python reads them. load() takes one in the place of a config.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpupipe.errors import DataError, shown
from gpupipe.runtime.user_functions import name_function


class MapDataset(Protocol):
    """A data set: torch's or Hugging Face's, a list, or any class with these and `__len__`."""

    def __getitem__(self, index: Any, /) -> Any:
        """Return an item."""


@dataclass(frozen=True)
class GivenDataset:
    """A data set that the user gave as an object; configs hold it without looking inside.

    Attributes:
        dataset: The data set.
    """

    dataset: Any

    @property
    def name(self) -> str:
        """The name of the data set in messages and in the fingerprint."""
        return name_dataset(self.dataset)


def is_dataset(value: Any) -> bool:
    """Return whether a value may be a data set: it has items, or can be iterated over.

    Texts, paths and mappings are names or the content of configs.
    """
    if isinstance(value, (str, bytes, os.PathLike, Mapping, type)):
        return False
    return hasattr(value, "__getitem__") or hasattr(value, "__iter__")


def name_dataset(dataset: Any) -> str:
    """Return the qualified name of the class of a data set, such as "my_data:Photos"."""
    kind = type(dataset)
    return kind.__name__ if kind.__module__ == "builtins" else name_function(kind)


def count_items(dataset: Any, name: str) -> int:
    """Return the number of items of a data set.

    Args:
        dataset: The data set.
        name: Its name for messages.

    Raises:
        DataError: It is no map-style data set, or is empty.
    """
    if wrong := _explain_refusal(dataset):
        raise DataError(f"{name}: {wrong}")
    try:
        count = len(dataset)
    except Exception as e:  # whatever the code of the user raises
        raise DataError(
            f"{name}: its len() raised {type(e).__name__}: {e}. The order of the samples is drawn "
            "from their number: return it from __len__"
        ) from e
    if not count:
        raise DataError(f"{name}: it is empty: its len() is 0")
    return count


def _explain_refusal(dataset: Any) -> str:
    """Return why an object is no map-style data set, and what to write; "" if it is one."""
    bases = [base.__name__ for base in type(dataset).__mro__]
    if "DataLoader" in bases:
        return (
            "it is a DataLoader, and gpupipe makes the batches itself: pass its data set, "
            "gpupipe.load(loader.dataset, batch_size=...)"
        )
    if "IterableDataset" in bases:
        return (
            "it is an IterableDataset, which decides the order itself, so that no other order can "
            "be drawn from a seed, shared by ranks or resumed: write a class with __len__ and "
            "__getitem__, or read its shards with data.source webdataset, tfrecord or parquet"
        )
    lacks = [name for name in ("__len__", "__getitem__") if not hasattr(dataset, name)]
    if lacks:
        return (
            f"it is a {type(dataset).__name__} without {' and '.join(lacks)}: a data set has "
            "__len__() and __getitem__(i)"
        )
    return ""


def fingerprint_dataset(dataset: Any, name: str, count: int) -> str:
    """Return the text that identifies a data set: its name, its length, and its `_fingerprint`.

    Data sets of Hugging Face have a `_fingerprint`, which changes with their content.
    """
    own = getattr(dataset, "_fingerprint", None)
    return f"{name} {count}" + (f" {own}" if isinstance(own, str) else "")


def describe_value(value: Any) -> str:
    """Return what a part of an item is, for messages: its type, with the shape of an array."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        text = f" {shown(value)}" if isinstance(value, (str, int, float)) else ""
        return f"a {type(value).__name__}{text}"
    return f"a {type(value).__name__} {tuple(shape)} of {str(dtype).removeprefix('torch.')}"
