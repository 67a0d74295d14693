"""The class Detected, and the conventions for names of files and folders in data sets.

`detect_masks` finds images with segmentation masks by these conventions.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from gpupipe.dataset.class_folders import IMAGE_EXTENSIONS
from gpupipe.errors import counted

T = TypeVar("T")
TRAIN, VAL = "train", "val"
_PARTS = {
    TRAIN: ("train", "training", "trn"),
    VAL: ("val", "valid", "validation", "eval", "test", "testing", "dev"),
}
"""Words in names that mark the parts of a data set, in order of preference."""
PART_WORDS = frozenset(word for names in _PARTS.values() for word in names)
IMAGE_WORDS = frozenset(("image", "images", "img", "imgs", "jpegimages", "leftimg8bit", "photos"))
_WORD = re.compile(r"(?:x|y)(?=(?:train|test|val)(?![a-z]))|[a-z]+(?:8bit)?|\d+")
_MACOS = "__MACOSX"
_MAX_NAMED = 4


def list_files(folder: Path) -> list[str]:
    """Return the paths of all files below a folder, relative to it, sorted. Skips hidden files."""
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
    """Return whether the suffix of a path is that of an image."""
    return path.rpartition(".")[2].lower() in IMAGE_EXTENSIONS


@cache
def split_words(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: ("x", "train") for "x_train" and "xTrain"."""
    return tuple(_WORD.findall(name.lower()))


def find_part_word(name: str) -> str:
    """Return the first word in a name that marks a part of a data set, such as "val"; or ""."""
    return next((word for word in split_words(name) if word in PART_WORDS), "")


def is_part_name(name: str) -> bool:
    """Return whether a folder's name only marks a part of a data set, as train_images does."""
    words = {word for word in split_words(name) if word.isalpha()}
    return bool(words & PART_WORDS) and words <= PART_WORDS | IMAGE_WORDS | {"set", "data"}


def is_image_name(name: str) -> bool:
    """Return whether a folder's name only says that it holds images, as images_001 does."""
    words = {word for word in split_words(name) if word.isalpha()}
    return bool(words) and words <= IMAGE_WORDS


def choose_parts(groups: Mapping[str, T]) -> dict[str, T]:
    """Choose the groups for training and for validation.

    If no word means training, the group of the word "" is for training. If there is no such group
    either, the first group is for training, and none is for validation.

    Args:
        groups: Maps a word that marks a part of the data set, such as "valid", or "" to a group.
            Groups may have any type.

    Returns:
        The chosen group of each part: "train", and "val" if there is validation data.
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


def split_into_parts(items: Iterable[T], find_word: Callable[[T], str]) -> dict[str, list[T]]:
    """Group items by the words that `find_word` returns; let choose_parts() choose groups."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(find_word(item), []).append(item)
    return choose_parts(groups)


def name_some(names: Iterable[str]) -> str:
    """Join the first four names to a text, and add the number of further names."""
    rest = (name if name.isprintable() else repr(name) for name in names)
    first = list(islice(rest, _MAX_NAMED))
    more = sum(1 for _ in rest)
    return ", ".join(first) + (f" and {more:,} more" if more else "")


@dataclass(frozen=True)
class BoxColumns:
    """Columns of lists that look like boxes, and what goes with each box.

    Attributes:
        boxes: The path of the column of boxes, such as "objects.bbox".
        others: The path of the column of each field that goes with the boxes, such as "labels".
        are_fractions: Whether all numbers of the boxes are from 0 to 1.
    """

    boxes: str
    others: Mapping[str, str]
    are_fractions: bool


@dataclass
class Detected:
    """Detected data: the source that can read the data, and its options.

    Attributes:
        source: The name of the source.
        options: The options of the source in the YAML.
        notes: Sentences about uncertain choices, for the user.
        table: The columns of a manifest that must be written for the source. The path of the
            manifest becomes `data.file`. None if the source needs no new manifest.
        used: The files that the source reads, relative to the folder; None if not known.
        unused: A text that names the files that are not read, or "".
        boxes: Columns that look like boxes, which the config offers; None if there are none.
    """

    source: str
    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    table: Mapping[str, Sequence[str]] | None = None
    used: Iterable[str] | None = None
    unused: str = ""
    boxes: BoxColumns | None = None


def describe_unused(files: Iterable[str], parts: Iterable[Detected]) -> str:
    """Return a text that names the files that no part reads.

    Return "" if all files are read, or if it is not known which files a part reads.
    """
    lists = [part.used for part in parts]
    if None in lists:
        return ""
    used = {path for paths in lists for path in paths or ()}
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


_MASK_WORDS = {"mask", "masks", "label", "labels", "annotation", "annotations", "trimaps"}
_MASK_WORDS |= {"seg", "segmentation", "segmentations", "segmentationclass", "gt", "gtfine"}
_SUFFIX = re.compile(
    r"(?:[_\-. ](?P<mask>masks?|labels?|labelids|seg|segmentation|gt|gtfine|trimap)"
    r"|[_\-. ](?:image|img|leftimg8bit))+$"
)
_HINTS = ("mask", "label", "annotation", "seg", "gt", "trimap")
"""Every path of a mask contains one of these texts: `detect_masks` skips data without them."""
_Key = tuple[str, ...]


def detect_masks(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    """Detect images and their segmentation masks, whose names differ only by words such as mask.

    Args:
        folder: The folder of the data.
        files: The paths of all files below it, relative to it.

    Returns:
        The detected pairs of each part: "train", and "val" if there is validation data. {} if too
        few images have a mask.
    """
    text = "\n".join(files).lower()
    if not any(hint in text for hint in _HINTS):
        return {}
    images: dict[_Key, str] = {}
    masks: dict[_Key, str] = {}
    for path in files:
        if is_image(path) or path.lower().endswith(".gif"):
            is_mask, key = _parse_path(path)
            (masks if is_mask else images).setdefault(key, path)
    pairs = [(path, masks[key]) for key, path in images.items() if key in masks]
    if not pairs or 2 * len(pairs) < min(len(images), len(masks)):
        return {}
    alone = {
        "image": [path for key, path in images.items() if key not in masks],
        "mask": [path for key, path in masks.items() if key not in images],
    }
    notes = [
        f"{counted(len(paths), kind)} left out, without a partner of the same name: "
        f"{name_some(paths)}."
        for kind, paths in alone.items()
        if paths
    ]
    used = [*images.values(), *masks.values()]
    parts = split_into_parts(pairs, lambda pair: find_part_word(pair[0].rpartition("/")[0]))
    return {part: _describe(folder, group, notes, used) for part, group in parts.items()}


def _parse_path(path: str) -> tuple[bool, _Key]:
    """Return whether a file is a mask, and a key that an image and its mask share."""
    *folders, name = path.lower().split("/")
    words = [split_words(folder) for folder in folders]
    stem = name.rpartition(".")[0]
    suffix = _SUFFIX.search(stem)
    is_mask = any(not _MASK_WORDS.isdisjoint(some) for some in words) or bool(
        suffix and suffix["mask"]
    )
    rest = [" ".join(w for w in some if w not in _MASK_WORDS | IMAGE_WORDS) for some in words]
    return is_mask, (*filter(None, rest), _SUFFIX.sub("", stem))


def _describe(
    folder: Path, pairs: Sequence[tuple[str, str]], notes: list[str], used: list[str]
) -> Detected:
    columns = {"image": [image for image, _ in pairs], "mask": [mask for _, mask in pairs]}
    options = {
        "root": str(folder),
        "path": "image",
        "label": None,
        "fields": {"mask": "mask"},
        "masks": ["mask"],
    }
    return Detected("file_list", options, list(notes), columns, used)
