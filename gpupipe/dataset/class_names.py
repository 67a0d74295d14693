"""The option `classes` of sources of shards: the names of the classes, by number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from gpupipe.dataset.labels import Where, from_texts, number_classes
from gpupipe.dataset.paths import name_file
from gpupipe.errors import DataError, did_you_mean, shown
from gpupipe.runtime.files import open_regular
from gpupipe.schema.field_types import expand_home


def _expand(classes: tuple[str, ...] | Path | None) -> tuple[str, ...] | Path | None:
    return expand_home(classes) if isinstance(classes, Path) else classes


Classes = Annotated[
    Annotated[tuple[str, ...], Field(min_length=1)] | Path | None, AfterValidator(_expand)
]
"""The names of the classes: a list, or a file with a name on each line; None if there are none."""


def list_class_files(classes: tuple[str, ...] | Path | None) -> list[Path]:
    """Return the file that holds the names of the classes, if there is one."""
    return [classes] if isinstance(classes, Path) else []


def read_class_names(classes: tuple[str, ...] | Path | None) -> tuple[str, ...]:
    """Return the names of the classes, in the order of their numbers; () if there are none.

    Raises:
        DataError: The file cannot be read.
    """
    if not isinstance(classes, Path):
        return classes or ()
    with name_file(classes, "set data.classes"), open_regular(classes) as file:
        text = file.read().decode("utf-8")
    # str.splitlines would split at characters that names may have.
    return tuple(text.removesuffix("\n").replace("\r\n", "\n").split("\n"))


def number_labels(
    labels: Sequence[str] | NDArray[np.int64] | None,
    count: int,
    where: Where,
    classes: Sequence[str] = (),
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the class numbers of samples, int64 (N,), and the names of the classes.

    Args:
        labels: The label of each sample, as texts or as numbers; None if there are no labels.
        count: The number N of samples.
        where: Maps a sample's number to its location, for messages.
        classes: The names of the classes; () to take them from the labels, as `number_classes`
            does. Labels that are whole numbers are positions in it, other labels are names in it.

    Raises:
        DataError: A label is not valid, or is none of `classes`.
    """
    if labels is None or not classes:
        return number_classes(labels, count, where)
    if not isinstance(labels, np.ndarray) and not labels[0].lstrip("-").isdecimal():
        number_of: dict[Any, int] = {name: number for number, name in enumerate(classes)}
        wrong = next((n for n, label in enumerate(labels) if label not in number_of), None)
        if wrong is not None:
            hint = did_you_mean(labels[wrong], classes)
            raise DataError(
                f"{where(wrong)}: the label {shown(labels[wrong])} is none of data.classes{hint}"
            )
        return np.array([number_of[label] for label in labels], np.int64), list(classes)
    numbers = (
        number_classes(labels, count, where)
        if isinstance(labels, np.ndarray)
        else from_texts(labels, where)
    )[0]
    if (beyond := np.flatnonzero(numbers >= len(classes))).size:
        raise DataError(
            f"{where(int(beyond[0]))}: the label {numbers[beyond[0]]} is none of the "
            f"{len(classes):,} classes of data.classes, which count from 0"
        )
    return numbers, list(classes)
