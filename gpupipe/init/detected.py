"""Detected: data that a source can read; and what names of files and folders mean by custom."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from gpupipe.dataset.class_folders import IMAGE_EXTENSIONS

T = TypeVar("T")
TRAIN, VAL = "train", "val"
_PARTS = {
    TRAIN: ("train", "training", "trn"),
    VAL: ("val", "valid", "validation", "eval", "test", "testing", "dev"),
}
"""Words for the parts of a data set; the first that is there is taken."""
PART_WORDS = frozenset(word for names in _PARTS.values() for word in names)
IMAGE_WORDS = frozenset(("image", "images", "img", "imgs", "jpegimages", "leftimg8bit", "photos"))
_WORD = re.compile(r"(?:x|y)(?=(?:train|test|val)(?![a-z]))|[a-z]+(?:8bit)?|\d+")
_MACOS = "__MACOSX"
_MAX_NAMED = 4


def list_files(folder: Path) -> list[str]:
    """Return the paths of all files below a folder, sorted, without hidden ones."""
    found, seen = [], set()
    for here, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder that was there already
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".") and name != _MACOS]
        start = "" if here == str(folder) else f"{os.path.relpath(here, folder)}/"
        found += [f"{start}{name}" for name in files if not name.startswith(".")]
    return sorted(found)


def is_image(path: str) -> bool:
    """Whether the suffix is that of an image file."""
    return path.rpartition(".")[2].lower() in IMAGE_EXTENSIONS


@cache
def split_words(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: "x_train" and "xTrain" are x and train."""
    return tuple(_WORD.findall(name.lower()))


def find_part_word(name: str) -> str:
    """Return the word of a name that says which part of a data set it is, or ""."""
    return next((word for word in split_words(name) if word in PART_WORDS), "")


def is_part_name(name: str) -> bool:
    """Whether a folder's name says its part of a data set and no more, as train_images does."""
    words = {word for word in split_words(name) if word.isalpha()}
    return bool(words & PART_WORDS) and words <= PART_WORDS | IMAGE_WORDS | {"set", "data"}


def is_image_name(name: str) -> bool:
    """Whether a folder's name says that images are in it and no more, as images_001 does."""
    words = {word for word in split_words(name) if word.isalpha()}
    return bool(words) and words <= IMAGE_WORDS


def choose_parts(groups: Mapping[str, T]) -> dict[str, T]:
    """Return what is for training, and for validation, of groups by their words for parts.

    The group "" is for training if no other is.
    """
    named = {
        part: next((groups[word] for word in words if word in groups), None)
        for part, words in _PARTS.items()
    }
    chosen = {part: group for part, group in named.items() if group is not None}
    if TRAIN not in chosen and groups:
        if "" not in groups:
            return {TRAIN: next(iter(groups.values()))}
        chosen = {TRAIN: groups[""]} | chosen
    return chosen


def name_some(names: Iterable[str]) -> str:
    """Return the first names as a text that says how many more there are."""
    rest = (name if name.isprintable() else repr(name) for name in names)
    first = list(islice(rest, _MAX_NAMED))
    more = sum(1 for _ in rest)
    return ", ".join(first) + (f" and {more:,} more" if more else "")


@dataclass
class Detected:
    """Data that a source can read.

    Attributes:
        source: The name of the source.
        options: Its options in the YAML.
        notes: What is not certain, one sentence each.
        table: The columns of a list that must be written for the source, as `data.file`.
        used: The files that are read, relative to the folder; None if that is not known.
        unused: The files beside them that are not read, or "".
    """

    source: str
    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    table: Mapping[str, Sequence[str]] | None = None
    used: Iterable[str] | None = None
    unused: str = ""


def describe_unused(files: Iterable[str], parts: Iterable[Detected]) -> str:
    """Name the files that no part reads; "" if there are none, or if it is not known."""
    used: set[str] = set()
    for part in parts:
        if part.used is None:
            return ""
        used.update(part.used)
    tops = {path.partition("/")[0] for path in used}
    unused: dict[str, int] = {}
    for path in files:
        if path not in used:
            top, slash, _ = path.partition("/")
            name = f"{top}/" if slash and top not in tops else path
            unused[name] = unused.get(name, 0) + 1
    return name_some(
        f"{name} ({count:,} files)" if name.endswith("/") and count > 1 else name
        for name, count in unused.items()
    )
