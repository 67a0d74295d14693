"""Data sets whose labels are known before their items are read."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gpupipe
from gpupipe.errors import DataError
from gpupipe.sources.helpers.known_datasets import find_files, list_classes, number_labels

datasets = pytest.importorskip("datasets")


def make_animals(count: int = 12) -> datasets.Dataset:
    """A data set of Hugging Face with images and classes, as the hub has them."""
    files = []
    for n in range(count):
        file = io.BytesIO()
        Image.new("RGB", (20 + n, 16), (n * 20, 0, 255)).save(file, "PNG")
        files.append({"bytes": file.getvalue(), "path": None})
    names = datasets.ClassLabel(names=["cat", "dog", "owl"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    labels = [n % 3 for n in range(count)]
    return datasets.Dataset.from_dict({"image": files, "label": labels}, features=features)


def test_images_of_hugging_face_are_decoded_by_the_engine_and_its_labels_are_known() -> None:
    animals = make_animals()
    steps = ["decode", {"center_crop": {"size": 16}}]
    with gpupipe.load(animals, pipeline=steps, device="cpu", weights="class_balanced") as loader:
        assert loader.index.classes == ["cat", "dog", "owl"]
        assert loader.index.labels.tolist() == [n % 3 for n in range(12)]
        assert next(iter(loader))["image"].shape == (12, 3, 16, 16)
        fingerprint = loader.index.fingerprint
    assert not isinstance(loader.index.columns["image"].read(np.array([0]))[0], Image.Image)
    other = animals.select(range(11, -1, -1))
    with gpupipe.load(other, pipeline=steps, device="cpu") as loader:
        assert loader.index.fingerprint != fingerprint, "_fingerprint differs, the length does not"


def test_a_transform_of_hugging_face_runs() -> None:
    def gray(rows: dict[str, list[Image.Image]]) -> dict[str, list[object]]:
        rows["image"] = [image.convert("L").resize((8, 8)) for image in rows["image"]]
        return rows

    animals = make_animals().with_transform(gray)
    with gpupipe.load(animals, pipeline=["decode"], device="cpu", shuffle=False) as loader:
        batch = next(iter(loader))
    assert batch["image"].shape == (12, 3, 8, 8)
    assert batch["label"].tolist() == [n % 3 for n in range(12)]


def test_files_of_a_list_are_named_relative_to_their_folder(tmp_path: Path) -> None:
    found = find_files([tmp_path / "a" / "1.jpg", tmp_path / "b" / "2.jpg"], "list")
    assert found is not None
    index = found.build_index()
    assert (index.root, index.names[0], index.names[1]) == (str(tmp_path), "a/1.jpg", "b/2.jpg")
    assert find_files([b"1"], "list") is None
    assert find_files({"a": 1}, "dict") is None


def test_labels_are_numbers_or_names() -> None:
    assert number_labels(["b", "a"], "x")[1] == ["a", "b"]
    assert number_labels([3, np.int32(1)], "x")[0].tolist() == [3, 1]
    with pytest.raises(DataError, match=r"x\[1\]: the label '-1' is negative"):
        number_labels([0, -1], "x")


def test_names_of_classes_are_those_of_torchvision() -> None:
    class Known:
        classes = ("a", "b")

    assert list_classes(Known()) == ["a", "b"]
    assert list_classes([]) == []
