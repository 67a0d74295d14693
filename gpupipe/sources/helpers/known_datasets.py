"""Data sets whose samples or labels are known without reading an item: lists, Hugging Face's.

A list of paths becomes an index of files, which the engines read themselves.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.file_columns import FileColumn
from gpupipe.dataset.given_dataset import describe_value
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.labels import number_classes
from gpupipe.errors import DataError
from gpupipe.sources.helpers.item_parts import ItemPart

Labels = tuple[NDArray[np.int64], list[str]]
"""The number of each sample's class, int64 (N,), and the names of the classes."""


@dataclass(frozen=True)
class SampleFiles:
    """Samples that are image files.

    Attributes:
        paths: The files, absolute or relative to the working directory.
        labels: Their labels; None if there are none.
        root: The absolute path of the folder that has all files; None: the deepest such folder.
    """

    paths: Sequence[str]
    labels: Labels | None
    root: str | None = None

    def build_index(self) -> Index:
        """Return the index of the files, whose names are relative to the folder."""
        # Of a million paths, pathlib would take ten times as long.
        absolute = [os.path.abspath(path) for path in self.paths]  # noqa: PTH100
        root = self.root or os.path.commonpath([path.rpartition("/")[0] for path in absolute])
        start = len(root.rstrip("/")) + 1
        names = StringArray.from_strings(path[start:] for path in absolute)
        numbers, classes = self.labels or (None, [])
        return build(root, names, numbers, classes, columns={"image": FileColumn(root, names)})


def find_files(dataset: Any, name: str) -> SampleFiles | None:
    """Return the samples of a list of paths, or of tuples (path, label); None of another data set.

    Raises:
        DataError: Only the first items of a list are such, or a label is no class.
    """
    if not isinstance(dataset, (list, tuple)):
        return None
    first = dataset[0]
    if _is_path(first):
        for number, item in enumerate(dataset):
            if not _is_path(item):
                raise _mistake(name, number, item, "is a path")
        return SampleFiles(list(map(os.fspath, dataset)), None)
    if not _is_pair(first):
        return None
    for number, item in enumerate(dataset):
        if not _is_pair(item):
            raise _mistake(name, number, item, "is a path and a label")
    labels = number_labels([label for _, label in dataset], name)
    return SampleFiles([os.fspath(path) for path, _ in dataset], labels)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _is_pair(item: Any) -> bool:
    if not isinstance(item, (list, tuple)) or len(item) != 2:
        return False
    return _is_path(item[0]) and isinstance(item[1], (int, str, np.integer))


def _mistake(name: str, number: int, item: Any, rule: str) -> DataError:
    return DataError(f"{name}[{number}] is {describe_value(item)}, but {name}[0] {rule}")


def number_labels(labels: Sequence[Any], name: str) -> Labels:
    """Return the numbers of labels that are whole numbers or names.

    Raises:
        DataError: A label is neither.
    """
    found: Any = labels
    if all(isinstance(label, (int, np.integer)) for label in labels):
        found = np.array(labels, np.int64)
    return number_classes(
        found if isinstance(found, np.ndarray) else [str(label) for label in found],
        len(labels),
        lambda n: f"{name}[{n}]",
    )


def find_labels(dataset: Any, label: ItemPart, name: str) -> Labels | None:
    """Return the labels of a list, or of a data set of Hugging Face; None of any other.

    Raises:
        DataError: An item of a list has no label.
    """
    if isinstance(dataset, (list, tuple)):
        found = []
        for number, item in enumerate(dataset):
            try:
                found.append(index(label.select(item)))
            except (TypeError, ValueError) as e:
                raise DataError(f"{name}[{number}]: its label is no whole number: {e}") from e
        return number_labels(found, name)
    if not is_hugging_face(dataset) or not isinstance(label.key, str):
        return None
    if label.key not in getattr(dataset, "column_names", ()) or has_transform(dataset):
        return None
    numbers = dataset.select_columns([label.key]).with_format("numpy")[:][label.key]
    return _name_classes(dataset, label.key, np.asarray(numbers).astype(np.int64), name)


def _name_classes(dataset: Any, key: str, numbers: NDArray[np.int64], name: str) -> Labels:
    labels, classes = number_labels(numbers.tolist(), name)
    names = getattr(dataset.features.get(key), "names", None) or []
    return labels, list(names) if len(names) >= len(classes) else classes


def is_hugging_face(dataset: Any) -> bool:
    """Return whether a data set is a `datasets.Dataset` of Hugging Face."""
    kind = type(dataset)
    return kind.__module__.partition(".")[0] == "datasets" and kind.__name__ == "Dataset"


def has_transform(dataset: Any) -> bool:
    """Return whether a data set of Hugging Face converts its items: it has a format."""
    return dataset.format.get("type") is not None


def leave_encoded(dataset: Any) -> Any:
    """Return a data set of Hugging Face whose images are files, which the engines decode."""
    if not is_hugging_face(dataset) or has_transform(dataset):
        return dataset
    for column, feature in dataset.features.items():
        if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
            dataset = dataset.cast_column(column, type(feature)(decode=False))
    return dataset


def list_classes(dataset: Any) -> list[str]:
    """Return the names of the classes that a data set has as `classes`, as in torchvision."""
    classes = getattr(dataset, "classes", None)
    is_list = isinstance(classes, (list, tuple))
    return [str(c) for c in classes] if is_list and classes is not None else []
