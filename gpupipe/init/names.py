"""Lists the files of a folder, and says what names of files and folders mean by custom."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from gpupipe.sources.folder import EXTENSIONS

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
    return path.rpartition(".")[2].lower() in EXTENSIONS


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
