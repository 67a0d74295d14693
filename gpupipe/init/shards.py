"""Finds out what the samples of tar and TFRecord shards are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.dataset.parallel_read import map_file
from gpupipe.dataset.shards import name_shard
from gpupipe.decoders.image_header import read_header
from gpupipe.formats import example, framing, tar

_IMAGES = ("jpg", "jpeg", "png", "webp")
_LABELS = ("cls", "label", "class", "txt")
_KEYS = ("label", "class", "cls", "class_id", "label_id")
_FEW = 8
"""Members of a tar that are looked at."""


def read_tar_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source webdataset for a shard, and what is not certain.

    Raises:
        DataError: The shard cannot be read.
    """
    members: dict[str, bytes] = {}
    with name_shard(file):
        data = map_file(file)
        for number, member in enumerate(tar.iter_members(data)):
            extension = member.name.rpartition("/")[2].partition(".")[2].lower()
            begin = member.offset
            members.setdefault(extension, data[begin : begin + member.size].tobytes())
            if number >= _FEW:
                break
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
    if label is None:
        options["label"] = None
        notes.append("no member looks like a label, so there are no labels.")
    elif label != "cls":
        options["label"] = label
    others = [e for e in members if e not in (image, label, "json")]
    if others:
        notes.append(f"other members are not read: {', '.join(others)} (data.fields, data.values).")
    return options, notes


def _json_label(members: dict[str, bytes]) -> str | None:
    try:
        content = json.loads(members.get("json", b"{}"))
    except ValueError:
        return None
    keys = content if isinstance(content, dict) else {}
    key = next((k for k in _KEYS if isinstance(keys.get(k), int)), None)
    return key and f"json:{key}"


def read_tfrecord_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source tfrecord for a shard, and what is not certain.

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
    if label is None:
        options["label"] = None
        notes.append("no feature looks like a label, so there are no labels.")
    elif label != default:
        options["label"] = label
    return options, notes


def _is_image_feature(feature: example.Feature, data: np.ndarray[Any, Any]) -> bool:
    if feature.kind != "bytes":
        return False
    spans = feature.spans()
    return bool(read_header(data[int(spans.begin[0]) : int(spans.end[0])].tobytes()).format)
