"""Finds out which folders of an archive, or keys of a database, to read."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from gpupipe.dataset.parallel_read import map_file
from gpupipe.dataset.shards import name_shard
from gpupipe.errors import DataError
from gpupipe.formats import lmdb_pages, zip_directory
from gpupipe.sources.folder import EXTENSIONS

_NUMBERED = re.compile(r"(\D+)\d+(?:\.\w+)?")
_IMAGES, _LABELS = ("image", "img", "images", "x"), ("label", "labels", "class", "target", "y")
_PARTS = ("train", "training", "trn")


def read_zip_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source zip for an archive, and what is not certain.

    Raises:
        DataError: The archive cannot be read, or holds no image.
    """
    with name_shard(file):
        names = [member.name for member in zip_directory.iter_members(map_file(file))]
    suffixes = tuple(f".{extension}" for extension in EXTENSIONS)
    folders = {name.rpartition("/")[0] for name in names if name.lower().endswith(suffixes)}
    folders = {folder for folder in folders if not folder.startswith((".", "__MACOSX"))}
    if not folders:
        raise DataError(f"{file}: no image ({', '.join(EXTENSIONS)}) in it")
    top, notes = os.path.commonpath(folders), []
    part = next((p for p in _PARTS if _holds(folders, os.path.join(top, p))), None)
    if part is not None:
        notes.append(f"only the folder {part} is read; others may hold validation data.")
        top = os.path.join(top, part)
        folders = {folder for folder in folders if _holds({folder}, top)}
    options = {"folder": top} if top else {}
    if folders == {top}:
        notes.append("the images are in no class folders, so they have no labels.")
        return options | {"label": None}, notes
    return options, notes


def read_lmdb_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source lmdb for a database, and what is not certain.

    Raises:
        DataError: The database cannot be read.
    """
    with name_shard(file):
        keys = [os.fsdecode(v.key) for v in lmdb_pages.iter_values(map_file(file))]
    numbered = [found for key in keys if (found := _NUMBERED.fullmatch(key))]
    counts = Counter(found[1] for found in numbered)
    image = next((p for p in counts if p.rstrip("-_:/.").lower() in _IMAGES), None)
    label = next((p for p in counts if p.rstrip("-_:/.").lower() in _LABELS), None)
    if image is not None:
        options: dict[str, Any] = {"fields": {"image": f"{image}{{id}}"}}
        if label is not None and counts[label] >= counts[image]:
            return options | {"label": f"{label}{{id}}"}, []
        return options, ["no keys look like labels, so there are no labels."]
    if keys and all("/" in key for key in keys):
        note = "the class is the part of the key before its first slash."
        return {"fields": {"image": "{class}/{name}"}, "label": "{class}"}, [note]
    return {}, ["all keys are taken for images, and there are no labels."]


def _holds(folders: set[str], folder: str) -> bool:
    """Whether one of the folders is `folder`, or lies in it."""
    return any(f"{path}/".startswith(f"{folder}/" if folder else "") for path in folders)
