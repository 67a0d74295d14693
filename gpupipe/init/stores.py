"""Chooses the arrays of HDF5 files and Zarr stores that are samples and labels."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpupipe.dataset.source import SOURCES
from gpupipe.errors import DataError
from gpupipe.init.detected import (
    IMAGE_WORDS,
    Detected,
    find_part_word,
    is_part_name,
    name_some,
    split_into_parts,
    split_words,
)
from gpupipe.runtime.installation import require_extra
from gpupipe.sources.helpers.store_reader import StoreReader

_SAMPLES = IMAGE_WORDS | {"x", "data", "features", "inputs", "volume", "volumes", "jpeg", "jpg"}
_LABELS = {"y", "label", "labels", "target", "targets", "class", "classes"}
_MARKS = (".zgroup", ".zarray", "zarr.json")
_MIN_GROUPS = 2
Array = dict[str, Any]


def is_store(folder: Path) -> bool:
    """Return whether a folder is a Zarr store; False if it cannot be read."""
    return any(os.path.isfile(folder / name) for name in _MARKS)  # noqa: PTH113  # False, too


def detect_stores(folder: Path) -> dict[str, Detected]:
    """Detect a Zarr store, or the stores that are in a folder.

    Returns:
        The detected data of each part: "train", and "val" if there is validation data; {} if there
        is no store.

    Raises:
        DataError: A store cannot be read, or holds no samples.
    """
    if is_store(folder):
        return {"train": _detect([folder], str(folder))}
    stores = [path for path in sorted(folder.iterdir()) if path.is_dir() and is_store(path)]
    parts = split_into_parts(stores, lambda path: find_part_word(path.stem))
    return {part: _detect(group) for part, group in parts.items()}


def _detect(stores: list[Path], pattern: str | None = None) -> Detected:
    options, notes = _read_options("zarr", stores[0])
    names = [str(store) for store in stores]
    return Detected("zarr", {"stores": pattern or _one_or_all(names)} | options, notes)


def _one_or_all(names: list[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else names


def read_hdf5_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source hdf5 for a file, and notes on what is uncertain.

    Raises:
        DataError: The file cannot be read, or holds no samples.
    """
    return _read_options("hdf5", file)


def _read_options(kind: str, path: Path) -> tuple[dict[str, Any], list[str]]:
    source: Any = SOURCES.find(kind)
    require_extra(kind, source.modules, f"reading {path}")
    with StoreReader(kind) as reader:
        arrays = reader.list_arrays(path)
    if group := _find_group(arrays):
        return _choose_in_groups(group, arrays)
    return _choose_rows(path, arrays)


def _find_group(arrays: Sequence[Array]) -> str:
    """Return the group that has a group with arrays of the same names for each sample, or ""."""
    parents = Counter(
        ("/".join(parts[:-2]), parts[-1])
        for array in arrays
        if len(parts := array["path"].split("/")) > 2
        and _is_sample(array, 0)
        and not is_part_name(parts[-2])
    )
    (group, _), count = max(parents.items(), key=lambda pair: pair[1], default=(("", ""), 0))
    return (group or "/") if count >= _MIN_GROUPS else ""


def _is_sample(array: Array, axes: int) -> bool:
    """Return whether an array may hold samples, each of more than one number, after some axes."""
    is_ragged = array["dtype"].startswith("ragged")
    return array["dtype"] != "text" and (is_ragged or len(array["shape"]) >= axes + 1)


def _choose(arrays: Sequence[Array], words: set[str] | frozenset[str]) -> Array | None:
    """Return the first array whose name has one of the words; None if there is none."""
    named = (
        array
        for array in arrays
        if not words.isdisjoint(split_words(array["path"].rpartition("/")[2]))
    )
    return next(named, None)


def _choose_rows(path: Path, arrays: Sequence[Array]) -> tuple[dict[str, Any], list[str]]:
    likely = [array for array in arrays if array["shape"] and _is_sample(array, 1)]
    likely.sort(key=lambda array: -math.prod(array["shape"]))
    samples = _choose(likely, _SAMPLES) or next(iter(likely), None)
    if samples is None:
        names = name_some(array["path"] for array in arrays)
        raise DataError(f"{path}: no array of samples in it; there are {names or 'no arrays'}")
    others = [
        array
        for array in arrays
        if array["shape"] in ([samples["shape"][0]], [samples["shape"][0], 1])
    ]
    label = _choose([array for array in others if _is_label(array)], _LABELS)
    options: dict[str, Any] = {"fields": {"image": samples["path"]}}
    if label is not None:
        options["label"] = label["path"]
    return options, _note(arrays, samples, label)


def _is_label(array: Array) -> bool:
    return str(array["dtype"]).startswith(("int", "uint", "bool", "text", "|S", ">i", ">u"))


def _choose_in_groups(group: str, arrays: Sequence[Array]) -> tuple[dict[str, Any], list[str]]:
    inside = [array for array in arrays if array["path"].rpartition("/")[0].startswith(group)]
    first = inside[0]["path"].rpartition("/")[0]
    own = [array for array in inside if array["path"].rpartition("/")[0] == first]
    likely = sorted((a for a in own if _is_sample(a, 0)), key=lambda a: -math.prod(a["shape"]))
    samples = _choose(likely, _SAMPLES) or likely[0]
    label = _choose([array for array in own if not array["shape"] and _is_label(array)], _LABELS)
    options = {"groups": group, "fields": {"image": samples["path"].rpartition("/")[2]}}
    if label is not None:
        options["label"] = label["path"].rpartition("/")[2]
    notes = [f"each group in {group} is taken for a sample."]
    return options, notes + _note(own, samples, label)


def _note(arrays: Sequence[Array], samples: Array, label: Array | None) -> list[str]:
    others = [array["path"] for array in arrays if array not in (samples, label)]
    notes = [f"the samples are the array {samples['path']}."] if others else []
    if others:
        notes.append(f"{name_some(others)} are not read (data.fields, data.values).")
    if label is None:
        notes.append("no array looks like labels, so there are no labels.")
    return notes
