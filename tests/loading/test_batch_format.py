"""The formats of a batch with boxes: packed, padded, lists, torchvision's and DETR's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

import gpupipe
from gpupipe import config as configs
from gpupipe.errors import ConfigError
from gpupipe.loader import create_loader
from gpupipe.loading.batch_format import list_samples
from helpers.annotated_folder import POINTS, RAGGED, configure, load
from helpers.coco_files import document, write
from helpers.small_images import shrink_all

STEPS: list[Any] = [
    "decode",
    {"resize": {"size": [40, 60]}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("formats") / "faces", 48)


def first_batch(root: Path, **options: Any) -> Any:
    with load(root, STEPS, batch_size=7, shuffle=False, engine="cpu", **options) as loader:
        return next(iter(loader))


@pytest.fixture(scope="module")
def packed(root: Path) -> dict[str, Any]:
    batch: dict[str, Any] = first_batch(root)
    return batch


def test_padded_targets_say_how_many_rows_are_real(root: Path, packed: dict[str, Any]) -> None:
    batch = first_batch(root, targets="padded")
    counts = packed["boxes"].counts
    assert batch["num_boxes"].tolist() == counts.tolist()
    assert batch["num_tags"].tolist() == packed["tags"].counts.tolist()
    assert "num_labels" not in batch
    most = int(counts.max())
    shapes = {"boxes": (7, most, 4), "labels": (7, most), "keypoints": (7, most, POINTS, 2)}
    for name, shape in shapes.items():
        assert batch[name].shape == shape
    for n, count in enumerate(counts.tolist()):
        for name in ("boxes", "labels", "keypoints", "visibility"):
            assert torch.equal(batch[name][n, :count], packed[name][n])
        assert (batch["labels"][n, count:] == -1).all()
        assert (batch["boxes"][n, count:] == 0).all()
        assert (batch["visibility"][n, count:] == 0).all()


def test_lists_hold_the_rows_of_each_sample(root: Path, packed: dict[str, Any]) -> None:
    batch = first_batch(root, targets="list")
    for name in RAGGED:
        assert isinstance(batch[name], list)
        assert all(map(torch.equal, batch[name], packed[name]))


def test_torchvisions_detectors_take_their_format(root: Path, packed: dict[str, Any]) -> None:
    images, targets = first_batch(root, format="torchvision")
    assert len(images) == len(targets) == 7
    for n, (image, target) in enumerate(zip(images, targets, strict=True)):
        assert torch.equal(image, packed["image"][n])
        boxes = packed["boxes"][n]
        expected = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(40, 60))
        assert type(target["boxes"]) is tv_tensors.BoundingBoxes
        assert vars(target["boxes"]) == vars(expected)
        assert list(target) == [name for name in packed if name not in ("image", "visibility")]
        assert torch.equal(target["boxes"].as_subclass(torch.Tensor), packed["boxes"][n])
        assert torch.equal(target["labels"], packed["labels"][n] + 1)
        assert torch.equal(target["keypoints"][..., :2], packed["keypoints"][n])
        assert torch.equal(target["keypoints"][..., 2].long(), packed["visibility"][n])
        assert "visibility" not in target
        assert int(target["image_id"]) == 1000 + n
        assert target["to_original"].shape == (3, 3)


def test_ids_of_categories_that_leave_0_free_stay_as_they_are(tmp_path: Path) -> None:
    root = tmp_path / "coco"
    file = write(root, document(6))
    data = {"source": "coco", "root": root / "images", "annotations": file}
    config = {"data": data, "pipeline": STEPS}
    options: dict[str, Any] = {"batch_size": 6, "shuffle": False, "engine": "cpu", "device": "cpu"}
    found: dict[str, list[list[int]]] = {}
    for classes in ("original", "contiguous"):
        config["data"] = data | {"classes": classes}
        with gpupipe.load(config, format="torchvision", **options) as loader:
            found[classes] = [t["labels"].tolist() for t in next(iter(loader))[1]]
            ids: list[int] = loader.index.extra["category_ids"]
    assert ids[0] > 0
    assert sum(map(len, found["original"])) > 6
    for original, counted in zip(found["original"], found["contiguous"], strict=True):
        assert original == [ids[label - 1] for label in counted]


def test_detr_gets_boxes_from_0_to_1_and_a_mask(root: Path, packed: dict[str, Any]) -> None:
    batch = first_batch(root, format="detr")
    assert set(batch) == {"image", "mask", "targets"}
    assert batch["mask"].shape == (7, 40, 60)
    assert not batch["mask"].any()
    for n, target in enumerate(batch["targets"]):
        boxes = packed["boxes"][n].numpy()
        sides = boxes[:, 2:] - boxes[:, :2]
        expected = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, sides], 1) / [60, 40, 60, 40]
        np.testing.assert_allclose(target["boxes"].numpy(), expected, rtol=1e-5, atol=1e-6)
        assert target["size"].tolist() == [40, 60]
        target["size"] *= 2  # which changes no other target
        assert torch.equal(target["labels"], packed["labels"][n])
        assert list(target) == [*(name for name in packed if name != "image"), "size"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (STEPS[:2], "end it with 'to_dtype"),
        ([*STEPS[:2], {"to_dtype": {"dtype": "float32"}}], "unscaled"),
        (
            [*STEPS, {"normalize": {"mean": [0.5, 0.5, 0.5], "std": [1, 1, 1]}}],
            "normalize them themselves",
        ),
        ({"steps": STEPS, "views": {"a": {"steps": []}}}, "there are views"),
    ],
)
def test_a_pipeline_that_does_not_fit_torchvision_is_refused(
    root: Path, steps: Any, why: str
) -> None:
    with pytest.raises(gpupipe.ConfigError, match=why):
        load(root, steps, engine="cpu", format="torchvision")


def test_formats_of_detection_need_boxes(faces: Path) -> None:
    written = {"data": {"source": "folder", "root": faces}, "pipeline": STEPS}
    for name in ("torchvision", "detr"):
        with pytest.raises(gpupipe.ConfigError, match=r"loader\.format: .* delivers boxes"):
            configs.read(written, format=name)


def test_what_needs_labels_says_so(root: Path) -> None:
    with pytest.raises(gpupipe.ConfigError, match="the samples have no label: write format: dict"):
        load(root, STEPS, engine="cpu", format="tuple")
    with pytest.raises(gpupipe.ConfigError, match="the samples have no label: name a column"):
        load(root, STEPS, engine="cpu", weights="class_balanced")
    mixed = configs.read(
        {
            "data": {"source": "folder", "root": root},
            "pipeline": STEPS,
            "batch": [{"mixup": {"alpha": 0.2}}],
        }
    )
    config = configure(root, STEPS, engine="cpu")
    with pytest.raises(gpupipe.ConfigError, match="it mixes labels, and the data has none"):
        create_loader(replace(config, batch=mixed.batch))


def keep_samples(samples: list[dict[str, Any]]) -> Any:
    return samples


@pytest.mark.parametrize("options", [{}, {"shapes": "list"}, {"engine": "dataloader"}], ids=str)
def test_a_collate_function_gets_the_samples(
    root: Path, packed: dict[str, Any], options: dict[str, Any]
) -> None:
    options = {"engine": "cpu", "workers": 0, "ids": True, **options}
    with load(root, STEPS, batch_size=7, shuffle=False, collate=keep_samples, **options) as loader:
        samples = next(iter(loader))
    assert [sample["id"].item() for sample in samples] == list(range(7))
    for n, sample in enumerate(samples):
        assert sample.keys() == {*packed, "id"}
        assert all(torch.equal(sample[name], packed[name][n]) for name in ("image", *RAGGED))


def test_a_collate_function_in_a_file_and_beside_other_settings(root: Path, tmp_path: Path) -> None:
    (tmp_path / "collate_of_file.py").write_text("def count(samples):\n    return len(samples)\n")
    text = (
        f"data: {{source: folder, root: '{root}'}}\npipeline: [decode, resize: {{size: [8, 8]}}]\n"
    )
    file = tmp_path / "train.yaml"
    file.write_text(
        text + "loader: {batch_size: 7, device: cpu, collate: 'collate_of_file:count'}\n"
    )
    with gpupipe.load(file, engine="cpu") as loader:
        assert next(iter(loader)) == 7
    with pytest.raises(ConfigError, match=r"loader\.collate: cutmix works on whole"):
        gpupipe.load(file, batch=["cutmix"])
    with pytest.raises(ConfigError, match=r"train\.yaml:3|no_such_module cannot be imported"):
        gpupipe.load(file, engine="cpu", collate="no_such_module:f")


def test_transformers_get_pixel_values_labels_and_a_mask_of_pixels(
    root: Path, packed: dict[str, Any]
) -> None:
    batch = first_batch(root, format="huggingface")
    detr = first_batch(root, format="detr")
    assert set(batch) == {"pixel_values", "pixel_mask", "labels"}
    assert torch.equal(batch["pixel_mask"], (~detr["mask"]).long())
    for own, target in zip(batch["labels"], detr["targets"], strict=True):
        assert torch.equal(own["class_labels"], target["labels"])
        assert torch.equal(own["boxes"], target["boxes"])
    files: list[Any] = [(str(path), n % 2) for n, path in enumerate(sorted(root.glob("*/*.jpg")))]
    options: dict[str, Any] = {"device": "cpu", "batch_size": 3, "shuffle": False}
    with gpupipe.load(files, pipeline=STEPS, format="huggingface", **options) as loader:
        batch = next(iter(loader))
    assert {name: value.shape for name, value in batch.items()} == {
        "pixel_values": (3, 3, 40, 60),
        "labels": (3,),
    }
    steps = ["decode", {"random_resize": {"min_size": 20, "max_size": 40}}]
    options |= {"shapes": "padded", "engine": "cpu"}
    with gpupipe.load(files, pipeline=steps, format="huggingface", **options) as loader:
        batch = next(iter(loader))
    assert batch["pixel_mask"].dtype == torch.int64
    assert batch["pixel_mask"][:, 0, 0].tolist() == [1, 1, 1]
    assert (
        batch["pixel_mask"].shape
        == batch["pixel_values"].shape[:1] + batch["pixel_values"].shape[2:]
    )


def test_padded_images_have_zeros_beyond_their_ends_also_in_memory_used_again(root: Path) -> None:
    files: list[Any] = [(str(path), 0) for path in sorted(root.glob("*/*.jpg"))]
    steps = ["decode", {"random_resize": {"min_size": 20, "max_size": 25}}, {"random_invert": {}}]
    options: dict[str, Any] = {"device": "cpu", "batch_size": 3, "shapes": "padded"}
    places, held, kept = set(), [], []
    with gpupipe.load(files, pipeline=steps, **options) as loader:
        for n, batch in enumerate(batch for _ in range(4) for batch in loader):
            image, sizes = batch["image"], batch["image_sizes"].tolist()
            for padded, (height, width) in zip(image, sizes, strict=True):
                assert not padded[:, height:].any() and not padded[:, :, width:].any()
                assert padded[:, :height, :width].any()
            places.add(image.data_ptr())
            if n < 2:
                held.append(image)
                kept.append(image.clone())
        assert len(places) < n
    assert all(map(torch.equal, held, kept))


def test_padded_series_have_zeros_beyond_their_ends_also_in_memory_used_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    for n, length in enumerate([5, 9, 6, 7, 8, 9], 1):
        np.save(tmp_path / "a" / f"{n}.npy", np.full((length, 2), n + length, np.uint8))
    options = {"device": "cpu", "batch_size": 3, "shapes": "padded", "shuffle": True}
    data = {"source": "numpy", "root": str(tmp_path), "layout": "LC"}
    with gpupipe.load({"data": data, "pipeline": [], "loader": options}) as loader:
        for batch in (batch for _ in range(6) for batch in loader):
            for padded in batch["array"]:
                length = int((padded[:, 0] == padded[0, 0]).sum())
                assert (padded[:length] == padded[0, 0]).all()
                assert not padded[length:].any()
                assert length in (5, 9, 6, 7, 8)
            del padded, batch


def test_the_iterators_of_dali_give_a_list_of_one_dict(root: Path) -> None:
    files: list[Any] = [(str(path), n % 2) for n, path in enumerate(sorted(root.glob("*/*.jpg")))]
    with gpupipe.load(
        files, pipeline=STEPS, format="dali", device="cpu", batch_size=3, shuffle=False
    ) as loader:
        (batch,) = next(iter(loader))
    assert batch["data"].shape == (3, 3, 40, 60)
    assert batch["label"].squeeze(-1).tolist() == [0, 1, 0]
    mixed: Any = {"batch_size": 3, "batch": [{"mixup": {"num_classes": 2}}]}
    floats = [*STEPS, {"to_dtype": {"dtype": "float32", "scale": True}}]
    with gpupipe.load(files, pipeline=floats, format="dali", device="cpu", **mixed) as loader:
        assert next(iter(loader))[0]["label"].shape == (3, 2)


def test_each_sample_has_its_part_of_each_field() -> None:
    rows = gpupipe.Ragged(torch.arange(3), torch.tensor([0, 3, 3]))
    first, second = list_samples({"id": torch.tensor([5, 6]), "name": ["a", "b"], "boxes": rows})
    assert (int(first["id"]), first["name"], first["boxes"].tolist()) == (5, "a", [0, 1, 2])
    assert (int(second["id"]), second["name"], second["boxes"].tolist()) == (6, "b", [])
    with pytest.raises(ValueError, match="shorter"):
        list_samples({"id": torch.tensor([5, 6]), "name": ["a"]})
