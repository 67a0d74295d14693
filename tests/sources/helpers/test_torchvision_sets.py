"""torchvision's data sets, whose files, labels or boxes are known."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets
from torchvision.transforms import v2

import gpupipe
from helpers.small_images import shrink_all

FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


def load(dataset: Any, **options: Any) -> gpupipe.Loader:
    return gpupipe.load(dataset, **{"device": "cpu", "engine": "cpu", "ids": True, **options})


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("own") / "faces", 40)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10's files, with 20 drawn images each."""
    folder = tmp_path_factory.mktemp("cifar")
    files = folder / "cifar-10-batches-py"
    files.mkdir()
    rng = np.random.default_rng(0)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"):
        pixels = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
        labels = rng.integers(0, 10, 20).tolist()
        (files / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}))
    names = [f"class {n}" for n in range(10)]
    (files / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    return folder


def test_a_loader_or_a_transform_of_labels_keeps_the_items(root: Path) -> None:
    def dark(path: str) -> torch.Tensor:
        return torch.zeros(3, 4, 4)

    with load(datasets.ImageFolder(root, loader=dark), pipeline=[]) as loader:
        assert not next(iter(loader))["image"].any()
    dataset = datasets.ImageFolder(root, v2.CenterCrop(8), lambda label: label + 100)
    with load(dataset) as loader:
        batch = next(iter(loader))
        assert batch["image"].shape[1:] == (3, 8, 8)
        assert int(batch["label"].min()) >= 100


def test_cifar_has_its_pixels_and_knows_its_labels(cifar: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.CIFAR10, "_load_meta", _load_names)
    dataset = datasets.CIFAR10(str(cifar))
    with load(dataset, pipeline=["decode"], weights="class_balanced") as loader:
        batch = next(iter(loader))
        assert loader.index.classes == dataset.classes
    ids = batch["id"].numpy()
    assert np.array_equal(batch["image"].permute(0, 2, 3, 1).numpy(), dataset.data[ids])
    assert batch["label"].tolist() == [dataset.targets[id] for id in ids]


def _load_names(dataset: datasets.CIFAR10) -> None:
    """Read the names without a check of the file's hash."""
    file = Path(dataset.root) / "cifar-10-batches-py" / "batches.meta"
    dataset.classes = pickle.loads(file.read_bytes())["label_names"]


def test_boxes_of_coco_move_with_their_images(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    files = sorted(root.glob("*/*.jpg"))[:4]
    images = [
        {"id": 9 - n, "file_name": str(p.relative_to(root)), "height": 40, "width": 40}
        for n, p in enumerate(files)
    ]
    boxes = [
        {"id": n, "image_id": 9 - n, "category_id": 5, "bbox": [n, 2, 8, 9], "area": 72}
        for n in range(3)
    ]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 5, "name": "face"}]}
    (tmp_path / "coco.json").write_text(json.dumps(content))
    dataset = datasets.CocoDetection(
        root, str(tmp_path / "coco.json"), transforms=v2.RandomHorizontalFlip(1.0)
    )
    with load(dataset, shuffle=False, targets="list", batch_size=4) as loader:
        (batch,) = loader
    assert batch["image_id"].tolist() == dataset.ids == [6, 7, 8, 9]
    for n, id in enumerate(dataset.ids):
        left = 9 - id
        wanted = [] if id == 6 else [[40.0 - left - 8, 2, 40 - left, 11]]
        assert batch["boxes"][n].tolist() == wanted
        assert batch["labels"][n].tolist() == [5] * len(wanted)
