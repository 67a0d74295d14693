"""Detects the kind of the data in a folder, and the source that reads it."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from gpupipe.dataset.source import SOURCES
from gpupipe.errors import GpupipeError
from gpupipe.init.arrays import detect_arrays, is_array
from gpupipe.init.box_columns import offer_boxes
from gpupipe.init.boxes import detect_boxes
from gpupipe.init.detected import (
    TRAIN,
    Detected,
    choose_parts,
    describe_unused,
    detect_masks,
    find_part_word,
    is_image,
    is_image_name,
    is_part_name,
    list_files,
    name_some,
    split_into_parts,
)
from gpupipe.init.lists import detect_list, detect_lists
from gpupipe.init.shards import READERS, has_images, read_hub_options
from gpupipe.init.stores import detect_stores
from gpupipe.init.tables import SUFFIXES as LISTS
from gpupipe.sources.helpers.hub_files import find_splits

_SHARDS = {
    ".tar": "webdataset",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".rec": "recordio",
    ".zip": "zip",
    ".mdb": "lmdb",
    ".lmdb": "lmdb",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
}
_NUMBERED_TFRECORD = re.compile(r"-\d{5}-of-\d{5}$")
_NUMBERED_PARQUET = re.compile(r"^[^/]+/[^/]+-\d{5}-of-\d{5}\.parquet$")
"""A Parquet file in a copy of a repository of Hugging Face's hub."""
_KINDS = tuple(dict.fromkeys(_SHARDS.values()))
_LMDB = "data.mdb"


def detect(folder: Path, ignored: Collection[Path] = ()) -> dict[str, Detected]:
    """Detect the data in a folder.

    Args:
        folder: The folder, or a single file of data.
        ignored: Absolute paths of files to ignore.

    Returns:
        The detected data of each part: "train", and "val" if there is validation data.

    Raises:
        GpupipeError: No source reads the data, or the folder does not exist.
    """
    if folder.is_file():
        return _detect_file(folder)
    if not folder.is_dir():
        raise GpupipeError(f"{folder}: no such folder")
    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return _detect_hub(folder)
    if stores := detect_stores(folder):
        return stores
    files = [path for path in list_files(folder) if (folder / path).absolute() not in ignored]
    if any(map(_NUMBERED_PARQUET.search, files)) and (found := _detect_hub(folder, has_images)):
        return found
    top = _find_top(files)
    inner = [path.removeprefix(top) for path in files if path.startswith(top)]
    parts = _detect_parts(folder / top, inner)
    parts[TRAIN].unused = describe_unused(inner, parts.values())
    return parts


def _detect_file(file: Path) -> dict[str, Detected]:
    if is_array(file.name):
        return detect_arrays(file.parent, [file.name])
    kind = _find_kind(file.name)
    if kind is not None or has_images(file):
        return {TRAIN: _detect_shards(file.parent, [file.name], kind or "parquet")}
    if file.suffix.lower() in LISTS:
        return {TRAIN: detect_list(file)}
    if file.suffix in (".yaml", ".yml"):
        raise GpupipeError(f"{file}: this is a config already: 'gpupipe run {file}' runs it")
    raise GpupipeError(f"{file}: no source reads a file of this name")


def _detect_hub(
    folder: Path, is_readable: Callable[[Path], bool] = lambda _: True
) -> dict[str, Detected]:
    """Detect the splits of a Hugging Face data set, as save_to_disk writes it or the hub has it.

    Splits whose first file is not readable are left out.
    """
    every = {name: files for name, files in find_splits(folder).items() if files}
    splits = {name: files for name, files in every.items() if is_readable(files[0])}
    others = {path.parent for path in folder.glob("*/*.parquet")}
    others -= {path.parent for files in every.values() for path in files}
    found = {}
    for part, split in choose_parts({name: name for name in splits}).items():
        options, notes = read_hub_options(splits[split][0])
        named = {"split": split} if split else {}
        if others:
            names = name_some(sorted(path.name for path in others))
            notes.append(f"{names} also hold Parquet files: to read one, set data.root to it.")
        detected = Detected("hf", {"root": str(folder)} | named | options, notes)
        found[part] = offer_boxes(detected, splits[split][0])
    return found


def _find_top(files: Sequence[str]) -> str:
    """Return the relative path of the folder that contains folders such as train and val.

    The path ends in "/". It is "" for the root itself, or if there are no such folders.
    """
    data = {
        path.rpartition("/")[0]
        for path in files
        if is_image(path) or is_array(path) or _find_kind(path)
    }
    names = os.path.commonpath(data).split("/") if data else []
    above = list(takewhile(lambda name: not is_part_name(name), names))
    inner = {path.split("/")[len(above)] for path in data if path.count("/") >= len(above)}
    has_parts = any(map(is_part_name, inner))
    return "".join(f"{name}/" for name in above) if has_parts and above != [""] else ""


def _detect_parts(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    if parts := detect_boxes(folder, files):
        return parts
    if parts := detect_masks(folder, files):
        return parts
    if count_classes(files) < 2 and (parts := detect_lists(folder, files)):
        return parts
    names = sorted({path.partition("/")[0] for path in files if "/" in path})
    groups = {find_part_word(name): name for name in names if is_part_name(name)}
    chosen = choose_parts({"": ""} | groups)
    if chosen[TRAIN] and not _is_class(chosen, files):
        return {part: _detect_part(folder, name, files) for part, name in chosen.items()}
    return _detect_folder(folder, files)


def _is_class(parts: Mapping[str, str], files: Sequence[str]) -> bool:
    """Return whether the only folder named like a part is a class, as "train" among vehicles."""
    others = {path.partition("/")[0] for path in filter(is_image, files) if "/" in path}
    is_flat = not any(path.startswith(f"{parts[TRAIN]}/") and path.count("/") > 1 for path in files)
    return len(parts) == 1 and is_flat and len(others) > 2


def _detect_part(folder: Path, name: str, files: Sequence[str]) -> Detected:
    """Detect the data of one part of the data set, which has a folder of its own.

    Args:
        folder: The folder of the data set.
        name: The name of the part's subfolder, such as "train".
        files: The paths of all files in `folder`, relative to it.
    """
    inner = [path.removeprefix(f"{name}/") for path in files if path.startswith(f"{name}/")]
    lists = detect_lists(folder / name, inner) if count_classes(inner) < 2 else {}
    part = (lists or _detect_folder(folder / name, inner))[TRAIN]
    used = None if part.used is None else [f"{name}/{path}" for path in part.used]
    return replace(part, used=used)


def _detect_folder(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    """Detect the images, arrays or shards in a folder, for each part of the data set."""
    here = [path for path in files if "/" not in path]
    database = [path for path in files if path == _LMDB or path.endswith(f"/{_LMDB}")]
    if database:
        return {TRAIN: _detect_shards(folder, database[:1], "lmdb")}
    shards = {
        kind: names for kind in _KINDS if (names := [n for n in here if _find_kind(n) == kind])
    }
    if parquet := [name for name in here if has_images(folder / name)]:
        shards["parquet"] = parquet
    images = sum(map(is_image, files))
    if images > sum(map(len, shards.values())):
        return {TRAIN: detect_images(folder, files)}
    for kind, names in shards.items():
        parts = split_into_parts(names, find_part_word)
        return {part: _detect_shards(folder, group, kind) for part, group in parts.items()}
    if arrays := [name for name in here if is_array(name)]:
        return detect_arrays(folder, arrays)
    if arrays := [path for path in files if is_array(path)]:
        return {TRAIN: Detected("numpy", {"root": str(folder)}, used=arrays)}
    lists = name_some(name for name in here if name.lower().endswith(LISTS))
    raise GpupipeError(
        f"{folder}: nothing that a source reads: no images, no shards (.tar, .tfrecord, .rec, "
        ".zip, .parquet, .h5), no LMDB, no Zarr, no data set of Hugging Face (state.json) and no "
        "arrays (.npy, .npz)"
        f"{f'; and {lists} must name images that are below this folder' if lists else ''}"
    )


def _find_kind(name: str) -> str | None:
    """Return the source that reads a shard of this file name; None if the file is no shard."""
    if _NUMBERED_TFRECORD.search(name):
        return "tfrecord"
    return _SHARDS.get(Path(name).suffix.lower())


def _detect_shards(folder: Path, names: list[str], kind: str) -> Detected:
    first = folder / names[0]
    options, notes = READERS[kind](first)
    if kind == "lmdb":
        beside = [str(Path(names[0]).with_name("lock.mdb"))]
        return Detected(kind, {"path": str(first)} | options, notes, used=[*names, *beside])
    shards = str(first) if len(names) == 1 else str(folder / _make_pattern(names, kind))
    beside = [str(Path(name).with_suffix(".idx")) for name in names]
    detected = Detected(
        kind, {SOURCES.find(kind).shard_option: shards} | options, notes, used=[*names, *beside]
    )
    return offer_boxes(detected, first) if kind in ("parquet", "webdataset") else detected


def _make_pattern(names: Sequence[str], kind: str) -> str:
    """Return a glob pattern that matches all names."""
    suffix = "" if kind == "tfrecord" else Path(names[0]).suffix
    letters = takewhile(lambda same: len(set(same)) == 1, zip(*names, strict=False))
    return f"{''.join(letter for letter, *_ in letters).removesuffix(suffix)}*{suffix}"


def count_classes(files: Iterable[str]) -> int:
    """Return the number of class folders.

    Folders named like a part (train) or like images (images_001) are not class folders.
    """
    classes = set()
    for folder in {path.rpartition("/")[0] for path in files if is_image(path)}:
        names = folder.split("/") if folder else []
        while names and (is_part_name(names[0]) or is_image_name(names[0])):
            del names[0]
        classes.update(names[:1])
    return len(classes)


def detect_images(folder: Path, files: Sequence[str]) -> Detected:
    """Detect images in class folders. If most are in no class folder, they have no labels."""
    images = [path for path in files if is_image(path)]
    inside = [path for path in images if "/" in path]
    classes = {path.partition("/")[0] for path in inside}
    if len(classes) == 1 and all(path.count("/") > 1 for path in inside):
        return _detect_inside(folder, next(iter(classes)), inside)
    if 2 * len(inside) < len(images) or (len(classes) == 1 and is_image_name(next(iter(classes)))):
        note = "the images are in no class folders, so they have no labels."
        return Detected("folder", {"root": str(folder), "label": None}, [note], used=images)
    deeper = {"/".join(path.split("/")[:2]) for path in inside if path.count("/") > 1}
    notes = []
    if len(deeper) > len({path.partition("/")[0] for path in deeper}):
        notes.append(
            f"class folders hold further folders ({name_some(sorted(deeper))}): a class is the "
            f"first folder below {folder}; if it is the inner one, move those up."
        )
    return Detected("folder", {"root": str(folder)}, notes, used=inside)


def _detect_inside(folder: Path, name: str, paths: Sequence[str]) -> Detected:
    """Detect images whose class folders are the subfolders of `folder`/`name`."""
    part = detect_images(folder / name, [path.removeprefix(f"{name}/") for path in paths])
    note = f"all images are in {folder / name}, so the folders in it are taken for the classes."
    return replace(
        part, notes=part.notes or [note], used=[f"{name}/{path}" for path in part.used or ()]
    )
