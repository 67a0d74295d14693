"""The shipped recipes: each is a valid config, and its engines agree on real photographs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.tv_tensors import BoundingBoxes

import gpupipe
from gpupipe import config as configs
from gpupipe.bench import parity
from gpupipe.schema import yaml_files
from gpupipe.steps.containers import RandomApply

RECIPES = sorted(yaml_files.names("pipelines"))


@pytest.mark.parametrize("name", sorted(yaml_files.names("configs")))
def test_a_shipped_config_is_valid_and_names_its_source(name: str) -> None:
    config = configs.read(name)
    assert config.pipeline.name in RECIPES
    text = yaml_files.locate("configs", name).read_text()
    assert text.startswith("# ") and len(text.splitlines()[0]) > 20


def test_dino_v2_blurs_as_the_code_that_trained_its_weights() -> None:
    """GaussianBlur(p) of dinov2/data/transforms.py blurs with the probability 1 - p."""
    config = configs.read("dino_v2")
    blurs = {"global_0": 0.0, "global_1": 0.0, "local_0": 0.0, "local_7": 0.0}
    for view in blurs:
        for step in (entry.step for entry in config.pipeline.entries_on(view)):
            if isinstance(step, RandomApply) and step.transforms[0].name == "gaussian_blur":
                blurs[view] = step.p
    assert blurs == {"global_0": 0.0, "global_1": 0.9, "local_0": 0.5, "local_7": 0.5}
    assert config.loader.batch_size == 64


@pytest.fixture(scope="module")
def segmented(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The list of eight photographs, each with a mask of four classes: its brightness."""
    folder = tmp_path_factory.mktemp("segmented")
    lines = ["image,mask"]
    for number, photo in enumerate(sorted(photos.glob("*/*.jpg"))[:8]):
        levels = np.asarray(Image.open(photo).convert("L"))
        Image.fromarray(levels // 64).save(folder / f"{number}.png")
        lines.append(f"{photo},{folder / str(number)}.png")
    (folder / "train.csv").write_text("\n".join(lines))
    return folder / "train.csv"


DETECTION = ("detr", "keypoint_rcnn", "multiscale", "ssd", "ssdlite")


@pytest.fixture(scope="module")
def annotated(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Eight photographs with boxes and keypoints, as COCO's annotation files have them."""
    folder = tmp_path_factory.mktemp("annotated")
    listed: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    for number, photo in enumerate(sorted(photos.glob("*/*.jpg"))[:8]):
        with Image.open(photo) as image:
            width, height = image.size
        name = str(photo.relative_to(photos))
        listed["images"].append({"id": number, "file_name": name, "width": width, "height": height})
        for part in range(number % 3 + 1):
            box = [width * 0.1 * part, height * 0.2, width * 0.5, height * 0.6]
            listed["annotations"].append(
                {
                    "id": len(listed["annotations"]),
                    "image_id": number,
                    "category_id": 1 + part,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                    "keypoints": [int(width * 0.3), int(height * 0.4), 2] * 17,
                }
            )
    points = [f"point {n}" for n in range(17)]
    listed["categories"] = [
        {"id": n, "name": f"class {n}", "keypoints": points, "skeleton": []} for n in (1, 2, 3)
    ]
    (folder / "instances.json").write_text(json.dumps(listed))
    return {"source": "coco", "root": str(photos), "annotations": str(folder / "instances.json")}


@pytest.fixture
def data(name: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The changes of data with which a config reads photographs, and the masks that it needs."""
    if name in DETECTION:
        points = {"keypoints": True} if name == "keypoint_rcnn" else {}
        return request.getfixturevalue("annotated") | points
    if name != "segmentation_train":
        return {"source": "folder", "root": str(request.getfixturevalue("photos"))}
    file = request.getfixturevalue("segmented")
    columns = {"path": "image", "label": None, "fields": {"mask": "mask"}, "masks": ["mask"]}
    return {"source": "file_list", "file": str(file), "root": "/", **columns}


@pytest.mark.parametrize("engine", ["dali", "cpu"])
@pytest.mark.parametrize("name", RECIPES)
def test_engines_agree_on_a_recipe(data: dict[str, Any], name: str, engine: str) -> None:
    config = configs.read({"data": data, "pipeline": name}, device="cpu")
    index = config.source.index()
    found, *others = parity.measure(config, index, ["cpu"], 4, last=True, engine=engine)
    assert found.images == 4
    assert found.holds, found
    names = {"keypoint_rcnn": ["boxes", "keypoints"]}.get(name, ["boxes"])
    expected = [f"all: {field}, in pixels" for field in names] if name in DETECTION else []
    assert [other.step for other in others] == expected
    for other in others:  # torchvision computes in float64, and batches have float32
        assert other.max < 1e-3 and other.holds and other.images == 4, other


@pytest.mark.parametrize("name", sorted(yaml_files.names("configs")))
def test_auto_runs_every_config_on_a_cpu(data: dict[str, Any], name: str) -> None:
    """By the CPU engine; with the samples, labels and fields that another engine delivers."""
    batches = []
    for engine in ("auto", "dali"):
        options = {"engine": engine, "device": "cpu", "batch_size": 1, "ids": True, "prefetch": 1}
        options |= {"format": "dict", "targets": "list", "shapes": "equal"}
        with gpupipe.load(name, data=data, **options) as loader:
            assert loader.engine.name == ("cpu" if engine == "auto" else "dali")
            batches.append([batch for _, batch in zip(range(2), loader, strict=False)])
    for ours, other in zip(*batches, strict=True):
        assert ours.keys() == other.keys()
        for field, tensor in ours.items():
            if isinstance(tensor, list):  # boxes and what goes with them
                assert all(map(torch.equal, tensor, other[field])), field
            else:
                found = tensor.shape, tensor.dtype
                assert found == (other[field].shape, other[field].dtype), field
        assert torch.equal(ours["id"], other["id"])
        if "label" in ours:
            torch.testing.assert_close(ours["label"], other["label"])


@pytest.mark.parametrize("name", ["autoaugment", "cifar10", "randaugment", "segmentation_train"])
@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_a_config_runs_on_photographs(data: dict[str, Any], name: str, engine: str) -> None:
    side = {"cifar10": 32, "segmentation_train": 480}.get(name, 224)
    workers = {"workers": 0} if engine == "dataloader" else {}
    with gpupipe.load(
        name, data=data, device="cpu", engine=engine, batch_size=2, **workers
    ) as loader:
        batch = next(iter(loader))
    assert batch["image"].shape == (2, 3, side, side)
    assert batch["image"].dtype == torch.float32


@pytest.mark.parametrize("name", ["segmentation_train"])
def test_masks_of_segmentation_move_with_their_images(data: dict[str, Any]) -> None:
    black = (0 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    batches = []
    for options in ({"engine": "dali"}, {"engine": "dataloader", "workers": 0}):
        with gpupipe.load(
            "segmentation_train", data=data, device="cpu", batch_size=8, **options
        ) as loader:
            batches.append(next(iter(loader)))
    for batch in batches:
        mask = batch["mask"][:, 0]
        assert (mask.dtype, mask.shape) == (torch.int64, (8, 480, 480))
        assert set(mask.unique().tolist()) == {0, 1, 2, 3, 255}
        outside = batch["image"].movedim(1, -1)[mask == 255]
        assert torch.allclose(outside, black.expand_as(outside), atol=1e-5)
        inside = batch["image"].mean(1)
        brightness = [float(inside[mask == value].mean()) for value in range(4)]
        assert brightness == sorted(brightness)
        assert brightness[3] - brightness[0] > 2
    assert (batches[0]["mask"] != batches[1]["mask"]).float().mean() < 0.01


@pytest.mark.parametrize("name", ["segmentation_train"])
def test_parity_compares_masks_too(data: dict[str, Any], name: str) -> None:
    config = configs.read(name, data=data, device="cpu")
    found = list(parity.measure(config, config.source.index(), ["cpu"], 2, engine="dali"))
    assert [a.step for a in found[:4]] == [
        "decode",
        "decode_2 on mask",
        "random_resize",
        "random_resize on mask",
    ]
    assert {a.step for a in found if not a.holds} == set()
    limits = {a.step: a.limit for a in found}
    assert (limits["decode_2 on mask"], limits["random_resize on mask"]) == (1, 0.5)
    assert limits["normalize"] == 0.5, "a resize of the mask does not count for the image"
    assert all(a.images == 2 for a in found)


@pytest.mark.parametrize(("name", "size"), [("ssd", 300), ("ssdlite", 320)])
def test_a_recipe_of_torchvision_makes_what_its_detectors_take(
    data: dict[str, Any], name: str, size: int
) -> None:
    with gpupipe.load(name, data=data, device="cpu", batch_size=2) as loader:
        images, targets = next(iter(loader))
    assert [image.shape for image in images] == [(3, size, size)] * 2
    for image, target in zip(images, targets, strict=True):
        assert image.dtype == torch.float32
        assert 0 <= float(image.min()) <= float(image.max()) <= 1
        boxes = target["boxes"]
        assert isinstance(boxes, BoundingBoxes)
        assert len(boxes) == len(target["labels"])
        assert (boxes[:, 2:] - boxes[:, :2] >= 1).all()
        assert (boxes >= 0).all()
        assert (boxes <= size).all()
        assert set(target["labels"].tolist()) <= {1, 2, 3}


@pytest.mark.parametrize("name", ["multiscale", "keypoint_rcnn"])
def test_recipes_whose_images_differ_in_size_make_lists(data: dict[str, Any], name: str) -> None:
    with gpupipe.load(name, data=data, device="cpu", batch_size=4) as loader:
        images, targets = next(iter(loader))
    assert len({image.shape for image in images}) > 1
    for image, target in zip(images, targets, strict=True):
        assert target["boxes"].canvas_size == tuple(image.shape[1:])
        assert len(target["boxes"]) == len(target["labels"]) > 0
        if name == "keypoint_rcnn":
            assert target["keypoints"].shape == (len(target["boxes"]), 17, 3)


@pytest.mark.parametrize("name", ["detr"])
def test_detr_gets_padded_images_with_a_mask(data: dict[str, Any], name: str) -> None:
    with gpupipe.load(name, data=data, device="cpu", batch_size=4) as loader:
        batch = next(iter(loader))
    assert batch["mask"].shape == (4, *batch["image"].shape[2:])
    for mask, target in zip(batch["mask"], batch["targets"], strict=True):
        high, wide = target["size"].tolist()
        assert not mask[:high, :wide].any()
        assert int(mask.sum()) == mask.numel() - high * wide
        assert 0 <= float(target["boxes"].min()) <= float(target["boxes"].max()) <= 1
