"""Makes an index of the samples of a dataset that timm's create_dataset returned."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.dataset.index import Index, build
from gpupipe.errors import ConfigError, DataError, Problem

_WHERE = "gpupipe.timm.create_loader"


def read_data(dataset: Any, channels: int) -> tuple[dict[str, Any], Index | None]:
    """Return the `data` of a config, and the samples if the dataset lists them itself.

    Args:
        dataset: A dataset of timm or torchvision over image files; a folder of class folders; or
            a dict, the `data` of a config.
        channels: 1 or 3.

    Raises:
        ConfigError: If the samples of the dataset are no image files, or it changes them.
        DataError: If it has no samples.
    """
    if isinstance(dataset, Mapping):
        return dict(dataset), None
    if isinstance(dataset, (str, Path)):
        return {"source": "folder", "root": str(dataset)}, None
    reader = getattr(dataset, "reader", dataset)
    samples = getattr(reader, "samples", None)
    root = getattr(reader, "root", None)
    if root is None or not _are_files(samples):
        kind = f"{type(dataset).__name__} of {type(reader).__name__}"
        advice = (
            "it reads no files of one image each: pass the data of a config in its place, such as "
            "{'source': 'webdataset', 'shards': 'train-*.tar'} (docs/sources.md)"
        )
        raise ConfigError([Problem(_WHERE, f"dataset is {kind}: {advice}")])
    _check_dataset(dataset, channels)
    return {"source": "folder", "root": str(root)}, _build_index(str(root), reader, samples)


def _are_files(samples: Any) -> bool:
    return isinstance(samples, Sequence) and all(
        isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], (str, Path))
        for sample in samples[:1]
    )


def _check_dataset(dataset: Any, channels: int) -> None:
    problems = []
    if getattr(dataset, "target_transform", None) is not None:
        advice = "labels are the numbers of the classes: set it to None, and change the batches"
        problems.append(f"dataset.target_transform is set: {advice}")
    if getattr(dataset, "additional_features", None):
        problems.append("dataset.additional_features is set: batches are (images, labels)")
    mode = getattr(dataset, "input_img_mode", "RGB" if channels == 3 else "L")
    if mode != ("RGB" if channels == 3 else "L"):
        advice = "write RGB for 3 channels, or L for 1"
        problems.append(f"dataset.input_img_mode is {mode!r} with {channels} channels: {advice}")
    if problems:
        raise ConfigError([Problem(_WHERE, problem) for problem in problems])


def _build_index(root: str, reader: Any, samples: Any) -> Index:
    if not samples:
        raise DataError(f"{root}: the dataset has no samples")
    names = [os.path.relpath(path, root) for path, _ in samples]
    labels = np.array([label for _, label in samples], np.int64)
    numbers: dict[str, int] = reader.class_to_idx
    count = max([*numbers.values(), int(labels.max())]) + 1
    classes = [str(number) for number in range(count)]
    for name, number in numbers.items():
        classes[number] = name
    return build(str(Path(root).resolve()), names, labels, classes)
