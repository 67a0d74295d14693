"""Sources of files with many images, beside the folder that the images came from."""

from pathlib import Path
from typing import Any

import torch

import gpupipe

STEPS = ["decode", {"random_crop": {"size": 64}}, "random_horizontal_flip"]
ENGINES: list[dict[str, Any]] = [
    {"engine": "dali"},
    {"engine": "cpu"},
    {"engine": "dataloader", "workers": 2},
]


def load_data(data: dict[str, Any], **options: Any) -> gpupipe.Loader:
    config = {"data": data, "pipeline": options.pop("pipeline", STEPS)}
    return gpupipe.load(config, **{"device": "cpu", "batch_size": 7, "ids": True} | options)


def assert_same_as_folder(data: dict[str, Any], faces: Path, options: dict[str, Any]) -> None:
    """Assert that `data` has the classes and the batches of the folder `faces`."""
    folder = {"source": "folder", "root": str(faces)}
    with load_data(data, **options) as ours, load_data(folder, **options) as theirs:
        assert ours.index.classes == theirs.index.classes
        for a, b in zip(ours, theirs, strict=True):
            assert all(torch.equal(a[name], b[name]) for name in ("image", "label", "id"))
