"""Chooses the options of sources for shards, archives and databases, by looking into one file."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.dataset.class_folders import IMAGE_EXTENSIONS, get_suffixes
from gpupipe.dataset.paths import name_file
from gpupipe.dataset.reading import map_file
from gpupipe.dataset.shards import name_shard
from gpupipe.decoders.image_header import read_header
from gpupipe.errors import DataError
from gpupipe.formats import arrow_columns, example, framing, lmdb_keys, tar, zip_directory
from gpupipe.init.stores import read_hdf5_options
from gpupipe.init.tables import find_label_name
from gpupipe.runtime.files import open_regular
from gpupipe.runtime.installation import require_extra
from gpupipe.sources.helpers.hub_files import read_features

_IMAGES = ("jpg", "jpeg", "png", "webp")
_LABELS = ("cls", "label", "class", "txt")
_KEYS = ("label", "class", "cls", "class_id", "label_id")
_MAX_MEMBERS = 9
"""Max number of members of a tar to look at."""


def read_tar_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source webdataset for a shard, and notes on what is uncertain.

    Raises:
        DataError: The shard cannot be read.
    """
    members: dict[str, bytes] = {}
    with name_shard(file):
        data = map_file(file)
        for member in islice(tar.iter_members(data), _MAX_MEMBERS):
            extension = member.name.rpartition("/")[2].partition(".")[2].lower()
            begin = member.offset
            members.setdefault(extension, data[begin : begin + member.size].tobytes())
    options: dict[str, Any] = {}
    notes = []
    image = next((e for e in members if e in _IMAGES), None)
    if image is None:
        image = next((e for e, content in members.items() if read_header(content).format), None)
        if image is not None:
            options["fields"] = {"image": image}
        else:
            notes.append(f"no member is an image; there are {', '.join(members)}.")
    label = next((name for name in _LABELS if name in members), None) or _json_label(members)
    options |= _label_options(label, "cls")
    if label is None:
        notes.append("no member looks like a label, so there are no labels.")
    others = [e for e in members if e not in (image, label, "json")]
    if others:
        notes.append(f"other members are not read: {', '.join(others)} (data.fields, data.values).")
    return options, notes


def _label_options(label: str | None, default: str) -> dict[str, Any]:
    """Return {"label": label}, or {} if the label is the source's default."""
    return {} if label == default else {"label": label}


def _explain_columns(label: str | None, names: Iterable[str]) -> list[str]:
    rest = f"no column looks like labels; there are {', '.join(names)}."
    return [] if label is not None else [rest]


def _json_label(members: dict[str, bytes]) -> str | None:
    try:
        content = json.loads(members.get("json", b"{}"))
    except ValueError:
        return None
    keys = content if isinstance(content, dict) else {}
    key = next((k for k in _KEYS if isinstance(keys.get(k), int)), None)
    return key and f"json:{key}"


def read_tfrecord_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source tfrecord for a shard, and notes on what is uncertain.

    Raises:
        DataError: The shard cannot be read.
    """
    with name_shard(file):
        data = map_file(file)
        records = next((r for r in framing.iter_records(data) if len(r)), None)
        if records is None:
            return {}, ["the first shard holds no record."]
        names = example.list_features(data, records)
        features = example.parse_features(data, records, names)
    options: dict[str, Any] = {}
    notes = []
    image = next((n for n in names if _is_image_feature(features[n], data)), None)
    if image is None:
        notes.append(f"no feature is an image; there are {', '.join(names)}.")
    elif image != "image/encoded":
        options["fields"] = {"image": image}
    likely = [n for n in names if features[n].kind == "int64s" and n.split("/")[-1] in _KEYS]
    default = "image/class/label"
    label = default if default in names else next(iter(likely), None)
    options |= _label_options(label, default)
    if label is None:
        notes.append("no feature looks like a label, so there are no labels.")
    return options, notes


def _is_image_feature(feature: example.Feature, data: np.ndarray[Any, Any]) -> bool:
    if feature.kind != "bytes":
        return False
    spans = feature.spans()
    return bool(read_header(data[int(spans.begin[0]) : int(spans.end[0])].tobytes()).format)


_NUMBERED = re.compile(r"(\D+)\d+(?:\.\w+)?")
_IMAGE_PREFIXES = ("image", "img", "images", "x")
_LABEL_PREFIXES = ("label", "labels", "class", "target", "y")
_PARTS = ("train", "training", "trn")


def read_zip_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source zip for an archive, and notes on what is uncertain.

    Raises:
        DataError: The archive cannot be read, or holds no image.
    """
    with name_shard(file):
        names = [member.name for member in zip_directory.iter_members(map_file(file))]
    suffixes = get_suffixes(IMAGE_EXTENSIONS)
    folders = {name.rpartition("/")[0] for name in names if name.lower().endswith(suffixes)}
    folders = {folder for folder in folders if not folder.startswith((".", "__MACOSX"))}
    if not folders:
        raise DataError(f"{file}: no image ({', '.join(IMAGE_EXTENSIONS)}) in it")
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
    """Return the options of the source lmdb for a database, and notes on what is uncertain.

    Raises:
        DataError: The database cannot be read.
    """
    with name_shard(file):
        keys = [os.fsdecode(v.key) for v in lmdb_keys.iter_values(map_file(file))]
    numbered = [found for key in keys if (found := _NUMBERED.fullmatch(key))]
    counts = Counter(found[1] for found in numbered)
    image = next((p for p in counts if p.rstrip("-_:/.").lower() in _IMAGE_PREFIXES), None)
    label = next((p for p in counts if p.rstrip("-_:/.").lower() in _LABEL_PREFIXES), None)
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
    """Return whether one of the folders is `folder`, or lies in it."""
    return any(f"{path}/".startswith(f"{folder}/" if folder else "") for path in folders)


def has_images(file: Path) -> bool:
    """Return whether a file is a .parquet with a column of image files; see `_find_image`."""
    if file.suffix.lower() != ".parquet":
        return False
    require_extra("parquet", ("pyarrow",), f"reading {file}")
    return _find_image(_read_parquet_schema(file)) is not None


def _find_image(schema: Any) -> str | None:
    """Return the column of image files in an Arrow schema; None if there is none.

    It has the type Image of `datasets`, or is called "image" and holds bytes or structs, not paths.
    """
    from pyarrow import types

    features = read_features(schema)
    for name in schema.names:
        if isinstance(features.get(name), dict) and features[name].get("_type") == "Image":
            return str(name)
    if "image" not in schema.names:
        return None
    kind = schema.field("image").type
    is_file = any((types.is_struct(kind), types.is_binary(kind), types.is_large_binary(kind)))
    return "image" if is_file else None


def _read_parquet_schema(file: Path) -> Any:
    with (
        name_file(file),
        open_regular(file) as opened,
        arrow_columns.open_parquet(opened) as table,
    ):
        return table.schema_arrow


def read_parquet_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Choose options of the source parquet from the columns of a shard.

    Returns:
        The options, and notes on what is uncertain.
    """
    schema = _read_parquet_schema(file)
    label = find_label_name(schema.names)
    options = _image_options(schema) | _label_options(label, "label")
    return options, _explain_columns(label, schema.names)


def _image_options(schema: Any) -> dict[str, Any]:
    image = _find_image(schema)
    return {} if image in (None, "image") else {"fields": {"image": image}}


def read_hub_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source hf for an Arrow or Parquet file of a data set.

    Returns:
        The options, and notes on what is uncertain.

    Raises:
        DataError: The file cannot be read.
    """
    require_extra("hf", ("pyarrow",), f"reading {file}")
    if file.suffix == ".parquet":
        schema = _read_parquet_schema(file)
    else:
        with name_shard(file):
            schema = arrow_columns.read_schema(file)
    features = read_features(schema).items()
    kinds = {name: kind.get("_type") for name, kind in features if isinstance(kind, dict)}
    classes = [name for name in schema.names if kinds.get(name) == "ClassLabel"]
    label = next(iter(classes), None) or find_label_name(schema.names)
    options = _image_options(schema) | _label_options(label, "label")
    return options, _explain_columns(label, schema.names)


READERS = {
    "webdataset": read_tar_options,
    "tfrecord": read_tfrecord_options,
    "recordio": lambda _: ({}, ["the label is the first number of a record's header."]),
    "zip": read_zip_options,
    "lmdb": read_lmdb_options,
    "parquet": read_parquet_options,
    "hdf5": read_hdf5_options,
}
"""Maps a source's name to a function that returns the source's options for a file, and notes."""
