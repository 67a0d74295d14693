"""gpupipe parity compares boxes and points with what torchvision's functionals make of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpupipe.bench import parity
from gpupipe.bench.annotation_parity import compute_coordinates
from gpupipe.bench.parity import Agreement, measure
from gpupipe.config import build_index
from helpers.annotated_folder import configure
from helpers.small_images import shrink_all

STEPS: list[Any] = [
    "decode",
    "random_photometric_distort",
    "random_iou_crop",
    "random_horizontal_flip",
    {"random_apply": {"transforms": ["random_vertical_flip", "random_invert"]}},
    {"resize": {"size": [40, 60]}},
    "sanitize_bounding_boxes",
    {"convert_bounding_box_format": {"format": "CXCYWH"}},
]


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("parity") / "faces", 48)


def compare(
    root: Path, steps: Sequence[Any] | dict[str, Any], last: bool = True
) -> list[Agreement]:
    config = configure(root, steps)
    found = measure(config, build_index(config), ["cpu"], 12, last=last, engine="cpu")
    return [a for a in found if "pixels" in a.step]


def test_boxes_and_points_agree_with_torchvision(root: Path) -> None:
    found = compare(root, STEPS)
    assert [a.step for a in found] == ["all: boxes, in pixels", "all: keypoints, in pixels"]
    assert all(a.holds and a.images == 12 and a.limit == parity._PIXELS for a in found)
    # torchvision computes in float64, and a batch holds float32: equal numbers were never compared.
    assert all(a.max > 0 for a in found)


def test_each_view_is_compared(root: Path) -> None:
    crop = {"count": 2, "steps": [{"random_crop": {"size": 30}}, "random_horizontal_flip"]}
    found = compare(root, {"steps": ["decode"], "views": {"crop": crop}}, last=False)
    names = [f"crop_{n}_{kind}" for n in range(2) for kind in ("boxes", "keypoints")]
    assert [a.step for a in found] == [f"all: {name}, in pixels" for name in names]
    assert all(a.holds for a in found)


def test_what_torchvision_cannot_move_is_compared_with_the_torch_lowering(root: Path) -> None:
    found = compare(root, ["decode", {"elastic_transform": {"alpha": 20, "sigma": 2}}])
    assert [a.step for a in found] == [
        "all: boxes, in pixels, against dataloader",
        "all: keypoints, in pixels, against dataloader",
    ]
    assert all((a.holds, a.max, a.limit) == (True, 0, 0) for a in found)


def test_boxes_that_are_elsewhere_fail(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they would if the tracer moved them by a pixel, or kept another box."""

    def compute(*args: Any) -> Any:
        coordinates = compute_coordinates(*args)
        boxes, points = coordinates["boxes"], coordinates["keypoints"]
        number = next(n for n, of_sample in enumerate(boxes) if len(of_sample))
        boxes[number][:, 0] += 1.0
        points[number] = points[number][1:]
        return coordinates

    monkeypatch.setattr("gpupipe.bench.annotation_parity.compute_coordinates", compute)
    boxes, points = compare(root, ["decode", {"resize": {"size": [40, 60]}}])
    assert (boxes.holds, points.holds, points.max) == (False, False, float("inf"))
    assert boxes.max == pytest.approx(1, abs=1e-3)
