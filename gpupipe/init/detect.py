"""Finds out what a folder of data holds, and which source reads it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpupipe.dataset.hub_files import find_splits
from gpupipe.errors import GpupipeError
from gpupipe.init.archives import read_lmdb_options, read_npz_options, read_zip_options
from gpupipe.init.lists import (
    has_images,
    read_arrow_options,
    read_list_options,
    read_parquet_options,
)
from gpupipe.init.shards import read_tar_options, read_tfrecord_options
from gpupipe.sources.folder import EXTENSIONS

T = TypeVar("T")
TRAIN, VAL = "train", "val"
_NAMES = {
    TRAIN: ("train", "training", "trn"),
    VAL: ("val", "valid", "validation", "eval", "test", "testing", "dev"),
}
_SHARDS = {
    ".tar": "webdataset",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".zip": "zip",
    ".mdb": "lmdb",
    ".lmdb": "lmdb",
}
_NUMBERED_TFRECORD = re.compile(r"-\d{5}-of-\d{5}$")
_LISTS = (".csv", ".tsv", ".parquet", ".txt")
_ARRAYS = (".npy", ".npz")
_ARRAY_ROLES = {
    "files": ("x_train", "x", "data", "images", "image", "features", "train_x"),
    "labels": ("y_train", "y", "labels", "label", "targets", "target", "train_y"),
}
"""Names that arrays have by custom, as files or in a .npz file."""
_LMDB = "data.mdb"
_FEW = 200
"""Entries of a folder that are looked at to find out what it holds."""


@dataclass
class Detected:
    """Data that a source can read.

    Attributes:
        source: The name of the source.
        options: Its options in the YAML.
        notes: What is not certain, one sentence each.
    """

    source: str
    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def detect(folder: Path) -> dict[str, Detected]:
    """Return what reads the training data, and the validation data if there is some.

    Args:
        folder: The folder, or a single file of data.

    Raises:
        GpupipeError: Nothing is recognised, or no source reads it.
    """
    if folder.is_file():
        return {TRAIN: _detect_files(folder.parent, [folder], folder.name)}
    if not folder.is_dir():
        raise GpupipeError(f"{folder}: no such folder")
    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return _detect_hub(folder)
    subfolders = {p.name.lower(): p for p in _visible(folder) if p.is_dir()}
    parts = {part: _choose(names, subfolders) for part, names in _NAMES.items()}
    if parts[TRAIN] is not None:
        return {part: _detect_folder(path) for part, path in parts.items() if path is not None}
    return _detect_by_name(folder) or {TRAIN: _detect_folder(folder)}


def _detect_hub(folder: Path) -> dict[str, Detected]:
    """Return the splits of a data set of Hugging Face that was saved to disk."""
    splits = find_splits(folder)
    chosen = {part: _choose(names, splits) for part, names in _NAMES.items()}
    if chosen[TRAIN] is None:
        chosen = {TRAIN: next(iter(splits.values()), [])}
    found = {}
    for part, files in chosen.items():
        if files:
            split = next(name for name, others in splits.items() if others is files)
            options, notes = read_arrow_options(files[0])
            named = {"split": split} if split else {}
            found[part] = Detected("hf", {"root": str(folder)} | named | options, notes)
    return found


def _choose(names: Sequence[str], found: dict[str, T]) -> T | None:
    return next((found[name] for name in names if name in found), None)


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))


def _detect_by_name(folder: Path) -> dict[str, Detected]:
    """Return the parts of files such as train-000.tar and val.csv; {} if names tell no parts."""
    files = [p for p in _visible(folder) if p.is_file() and _kind(p) is not None]
    parts = {
        part: [p for p in files if re.match(rf"({'|'.join(names)})(?![a-z])", p.name.lower())]
        for part, names in _NAMES.items()
    }
    if not parts[TRAIN] or {_kind(p) for p in parts[TRAIN]} == {"numpy"}:
        return {}
    return {part: _detect_files(folder, found, part) for part, found in parts.items() if found}


def _kind(path: Path) -> str | None:
    """Return the source that reads a file by its name; None if it is another kind of file."""
    suffix = path.suffix.lower()
    if suffix in _SHARDS:
        return _SHARDS[suffix]
    if _NUMBERED_TFRECORD.search(path.name):
        return "tfrecord"
    if suffix == ".rec":
        return "recordio"
    if suffix in _ARRAYS:
        return "numpy"
    return "file_list" if suffix in _LISTS else None


def _detect_folder(folder: Path) -> Detected:
    entries = _visible(folder)
    files = [p for p in entries if p.is_file()]
    folders = [p for p in entries if p.is_dir()]
    databases = [p for p in folders if (p / _LMDB).is_file()]
    if databases:
        return _detect_files(folder, [databases[0] / _LMDB], databases[0].name)
    kinds = Counter(kind for p in files if (kind := _kind(p)) is not None)
    images = [p for p in files if _is_image(p)]
    if folders and not images and _holds(folders[0], _is_image):
        return Detected("folder", {"root": str(folder)})
    if folders and not images and _holds(folders[0], lambda p: p.suffix.lower() in _ARRAYS):
        return Detected("numpy", {"root": str(folder)})
    for kind in ("webdataset", "tfrecord", "recordio", "zip", "lmdb", "file_list", "numpy"):
        if kinds[kind]:
            return _detect_files(folder, [p for p in files if _kind(p) == kind], folder.name)
    if images:
        note = "the images are in no class folders, so they have no labels."
        return Detected("folder", {"root": str(folder), "label": None}, [note])
    raise GpupipeError(
        f"{folder}: nothing that a source reads: no class folders with images, no list (.csv, "
        ".tsv, .txt, .parquet), no shards (.tar, .tfrecord, .rec, .zip), no LMDB, "
        "no data set of Hugging Face (state.json) and no arrays (.npy, .npz)"
    )


def _is_image(path: Path) -> bool:
    return path.suffix.lower().lstrip(".") in EXTENSIONS


def _holds(folder: Path, test: Callable[[Path], bool]) -> bool:
    """Whether one of the first files below a folder passes a test."""
    return any(
        test(path) for _, path in zip(range(_FEW), sorted(folder.rglob("*.*")), strict=False)
    )


def _detect_files(folder: Path, files: list[Path], what: str) -> Detected:
    kind = _kind(files[0])
    files = [p for p in files if _kind(p) == kind]
    if kind == "file_list" and has_images(files[0]):
        kind = "parquet"
    if kind == "file_list":
        return _detect_list(files, what)
    if kind == "numpy":
        return _detect_arrays(folder, files)
    if kind is None:
        raise GpupipeError(f"{files[0]}: no source reads a file of this name")
    if kind == "lmdb":
        options, notes = read_lmdb_options(files[0])
        return Detected(kind, {"path": str(files[0])} | options, notes)
    shards = str(files[0]) if len(files) == 1 else str(folder / _pattern(files))
    if kind == "webdataset":
        options, notes = read_tar_options(files[0])
    elif kind == "zip":
        options, notes = read_zip_options(files[0])
    elif kind == "parquet":
        options, notes = read_parquet_options(files[0])
    elif kind == "tfrecord":
        options, notes = read_tfrecord_options(files[0])
    else:
        options, notes = {}, ["the label is the first number of a record's header."]
    return Detected(kind, {"shards": shards} | options, notes)


def _pattern(files: Sequence[Path]) -> str:
    """Return a pattern that matches the names of all files."""
    names = [p.name for p in files]
    start = next(
        (n for n, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0
    )
    head, suffix = names[0][:start], files[0].suffix if _kind(files[0]) != "tfrecord" else ""
    return f"{head}*{suffix}"


def _detect_list(files: list[Path], what: str) -> Detected:
    notes = []
    if len(files) > 1:
        others = ", ".join(p.name for p in files[1:4])
        notes.append(f"of several lists this is the first; {others} may be meant for {what}.")
    options, more = read_list_options(files[0])
    return Detected("file_list", {"file": str(files[0])} | options, notes + more)


def _detect_arrays(folder: Path, files: list[Path]) -> Detected:
    """Return the source of x*.npy with y*.npy, of a .npz file, or of files of one sample each."""
    roles = {
        role: _choose(names, {p.stem.lower(): p for p in files})
        for role, names in _ARRAY_ROLES.items()
    }
    if roles["files"] is not None:
        named = {role: str(path) for role, path in roles.items() if path is not None}
        notes = [] if roles["labels"] else ["there is no file with labels, such as y.npy."]
        return Detected("numpy", named | {"rows": True}, notes)
    if len(files) == 1 and files[0].suffix.lower() == ".npz":
        options, notes = read_npz_options(files[0], _ARRAY_ROLES)
        return Detected("numpy", {"files": str(files[0])} | options | {"rows": True}, notes)
    if len(files) == 1:
        note = "each row of the array is taken for a sample; no labels were found."
        return Detected("numpy", {"files": str(files[0]), "rows": True}, [note])
    note = "each file is taken for a sample; no labels were found."
    return Detected("numpy", {"files": str(folder / f"*{files[0].suffix}")}, [note])
