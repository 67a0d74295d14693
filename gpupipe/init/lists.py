"""Finds the images that a list names, and their labels.

A list names images by paths, or by ids without an extension.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpupipe.dataset.source import RESERVED_NAMES
from gpupipe.errors import DataError, GpupipeError, counted
from gpupipe.formats.manifest import WITH_LISTS
from gpupipe.init.box_columns import offer_boxes
from gpupipe.init.detected import (
    TRAIN,
    Detected,
    choose_parts,
    find_part_word,
    is_image,
    list_files,
    name_some,
    split_into_parts,
)
from gpupipe.init.tables import (
    NUM_ANNOTATIONS,
    SUFFIXES,
    LabelChoice,
    Table,
    choose_label,
    holds_parts,
    is_file_list,
    read_table,
)

_RESERVED = frozenset(("image", "path", *RESERVED_NAMES))
_NO_LIST = "submission"
"""A word in the names of Kaggle's example submissions, whose labels are not real."""


@dataclass(frozen=True)
class _List:
    """A list that names files of the folder.

    Attributes:
        file: The list.
        table: The columns of the list.
        path: The column that names files.
        images: The image that each row names, relative to the folder; "" if there is none.
        choice: Which column holds the labels, if there is one.
        is_whole: Whether `table` has all rows of the file.
    """

    file: Path
    table: Table
    path: str
    images: Sequence[str]
    choice: LabelChoice
    is_whole: bool = True

    @property
    def rank(self) -> tuple[bool, int]:
        """Sort key: lists with labels rank higher, then lists that name more images."""
        return self.choice.label is not None, sum(map(bool, self.images))


def detect_lists(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    """Detect the lists in a folder that name the folder's images.

    Args:
        folder: The folder.
        files: All files below the folder, relative to it.

    Returns:
        The detected data of each part: "train", and "val" if there is validation data. {} if no
        list names images.

    Raises:
        GpupipeError: A list cannot be read.
    """
    images = [path for path in files if is_image(path)]
    files = [path for path in files if "/" not in path and Path(path).suffix.lower() in SUFFIXES]
    if not images:
        return {}
    lists = [read for name in files if (read := _read(folder / name, folder, images))]
    ascending = sorted(lists, key=lambda listing: listing.rank)
    groups = {find_part_word(listing.file.stem): listing for listing in ascending}
    parts = choose_parts(groups)
    if parts and parts[TRAIN].choice.label:
        parts = {part: one for part, one in parts.items() if one.choice.label}
    whole = groups.get("")
    if whole and (whole.rank > parts[TRAIN].rank or parts == {TRAIN: whole}):
        parts = _split_into_parts(whole)
    names = list(dict.fromkeys(listing.file.name for listing in parts.values()))
    others = name_some(listing.file.name for listing in lists if listing.file.name not in names)
    chosen = " and ".join(names)
    notes = [f"of several lists {chosen} is read, and not {others}: name another in data.file."]
    return {
        part: _detect(listing, folder, notes if others else []) for part, listing in parts.items()
    }


def _split_into_parts(listing: _List) -> dict[str, _List]:
    """Split a list into train and val, by a column with parts' names or by the images' folders."""
    column = next((name for name, texts in listing.table.items() if holds_parts(texts)), None)
    words = [find_part_word(image.rpartition("/")[0]) for image in listing.images]
    words = words if column is None else [text.lower() for text in listing.table[column]]
    named = [row for row, image in enumerate(listing.images) if image]
    parts = split_into_parts(named, words.__getitem__)
    if len(parts) == 1:
        return {TRAIN: listing}
    parts[TRAIN] += [row for row, image in enumerate(listing.images) if not image]
    by = "the folders of the images" if column is None else f"its column '{column}'"
    rest = len(words) - sum(map(len, parts.values()))
    left = f"; {counted(rest, 'row')} of neither part left out" if rest else ""
    note = f"the parts of {listing.file.name} are named by {by}{left}."
    choice = replace(listing.choice, notes=[*listing.choice.notes, note])
    whole = replace(listing, choice=choice, is_whole=False)
    return {part: _take(whole, rows) for part, rows in parts.items()}


def _take(listing: _List, rows: Sequence[int]) -> _List:
    table = {name: [texts[row] for row in rows] for name, texts in listing.table.items()}
    images = [listing.images[row] for row in rows]
    return replace(listing, table=table, images=images)


def detect_list(file: Path) -> Detected:
    """Detect the images that one list names.

    Raises:
        GpupipeError: The list cannot be read, or names no images below its folder.
    """
    folder = file.parent
    listing = _read(file, folder, [path for path in list_files(folder) if is_image(path)])
    if listing is None:
        raise GpupipeError(
            f"{file}: no column names images below {folder} "
            f"({name_some(read_table(file)) or 'no table'}): put the images there"
        )
    return _detect(listing, folder, [])


def _read(file: Path, folder: Path, images: Sequence[str]) -> _List | None:
    """Read a list. Return None if the list names too few of the images."""
    table = {} if _NO_LIST in file.stem.lower() else read_table(file)
    known = _index_names(images, find_part_word(file.stem) or TRAIN)
    path, found = "", [""]
    for name, texts in table.items():
        matches = [_find(text, known) for text in texts]
        if len(set(matches) - {""}) > len(set(found) - {""}):
            path, found = name, matches
    if not path or 2 * len(set(found) - {""}) < min(len(images), len(found)):
        return None
    columns = {name: texts for name, texts in table.items() if name != NUM_ANNOTATIONS}
    return _List(file, table, path, found, choose_label(columns, path))


def _index_names(images: Sequence[str], part: str) -> dict[str, str]:
    """Return a dict from each end of an image's path, with and without extension, to the path.

    If images share an end, images in folders of `part` or of no part win over images in folders of
    other parts. An end that is still ambiguous maps to "".
    """
    known: dict[str, str] = {}
    others: dict[str, str] = {}
    for path in images:
        word = find_part_word(path.rpartition("/")[0])
        names = known if word in ("", part) else others
        for end in _iter_ends(path):
            for name in (end, end.rpartition(".")[0]):
                names[name] = "" if name in names else path
    return others | known


def _iter_ends(path: str) -> Iterator[str]:
    """Yield the ends of a path. Those of a/b/c are a/b/c, b/c and c."""
    while path:
        yield path
        path = path.partition("/")[2]


def _find(text: str, known: dict[str, str]) -> str:
    """Look up the ends of a text in `known`, longest first. Return the image found, or ""."""
    return next((known[end] for end in _iter_ends(text.strip()) if known.get(end)), "")


def _detect(listing: _List, folder: Path, notes: list[str]) -> Detected:
    if listing.choice.fault:
        raise DataError(f"{listing.file}: {listing.choice.fault}")
    texts = listing.table[listing.path]
    lost = [text for text, image in zip(texts, listing.images, strict=True) if not image]
    notes = [*notes, *listing.choice.notes]
    if lost:
        count = counted(len(lost), "row")
        notes.append(f"{count} of {listing.file.name} left out, with no image: {name_some(lost)}.")
    images = [image for image in listing.images if image]
    if len(set(images)) < len(images):
        twice = name_some(name for name, count in Counter(images).items() if count > 1)
        notes.append(
            f"images with several rows in {listing.file.name} come several times: {twice}."
        )
    if NUM_ANNOTATIONS in listing.table:
        notes.append(f"the annotations in {listing.file.name}, such as boxes, are not read.")
    options = _read_as_it_is(listing, folder)
    used = {*images, listing.file.name}
    if options is not None:
        detected = Detected("file_list", options, notes, used=used)
        has_lists = listing.file.suffix.lower() in WITH_LISTS
        return offer_boxes(detected, listing.file) if has_lists else detected
    return _write(listing, folder, notes, used)


def _read_as_it_is(listing: _List, folder: Path) -> dict[str, Any] | None:
    """Return the options of the source file_list for a list; None if the list must be rewritten."""
    texts, choice = listing.table[listing.path], listing.choice
    top = listing.images[0].removesuffix(texts[0])
    named = all(image == top + text for text, image in zip(texts, listing.images, strict=True))
    if (
        not (named and listing.is_whole)
        or not is_file_list(listing.file)
        or not _RESERVED.isdisjoint(choice.values)
    ):
        return None
    root = {"root": str(folder / top)} if top else {}
    if listing.file.suffix.lower() == ".txt":
        labels = {} if choice.label else {"label": None}
        return {"file": str(listing.file)} | root | labels if not choice.values else None
    chosen = {"path": listing.path, "label": choice.label, "values": choice.values}
    defaults = {"path": "path", "label": "label", "values": []}
    options = {key: value for key, value in chosen.items() if value != defaults[key]}
    return {"file": str(listing.file)} | root | options


def _write(listing: _List, folder: Path, notes: list[str], used: set[str]) -> Detected:
    """Return a Detected with a manifest to write: the rows that name an image, with its path."""
    kept = [row for row, image in enumerate(listing.images) if image]
    names = {listing.path: "path", listing.choice.label: "label"}
    values = ["target" if name in _RESERVED else name for name in listing.choice.values]
    names |= dict(zip(listing.choice.values, values, strict=True))
    columns = {"path": [listing.images[row] for row in kept]}
    for name, texts in listing.table.items():
        columns.setdefault(names.get(name, name), [texts[row] for row in kept])
    options: dict[str, Any] = {"root": str(folder)}
    if listing.choice.label is None:
        options |= {"label": None} | ({"values": values} if values else {})
    return Detected("file_list", options, notes, columns, used)
