"""Each class of the table makes the pixels of its step, with the same parameters in both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
from albumentations.core.bbox_utils import denormalize_bboxes, normalize_bboxes
from numpy.typing import NDArray
from PIL import Image

from gpupipe.albumentations_adapter.counterparts import COUNTERPARTS
from gpupipe.annotations.points_tracer import PointsTracer
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations
from gpupipe.pipeline.step_registry import STEPS
from helpers.photographs import find_or_write

SPECS = {"boxes": Spec.of_boxes(), "points": Spec.of_points(rows_with="boxes", count=1)}
BOXES = np.array([[3.0, 5.0, 60.0, 70.0], [0.0, 0.0, 20.0, 9.0], [100.0, 30.0, 131.0, 117.0]])
POINTS = np.array([[[3.0, 5.0]], [[40.0, 77.0]], [[120.0, 100.0]]])


@dataclass(frozen=True)
class Case:
    """A transform whose parameters are the same in both.

    Attributes:
        transform: The transform.
        params: Returns what its `apply` gets, from the step, the step's draws and the image's size.
        levels: The largest difference of a level of uint8.
        share: The largest share of values that differ.
        points: How far boxes and points may be apart, in pixels; None if they do not move.
        inside: Whether pixels are compared away from the border of the moved image alone.
    """

    transform: Any
    params: Callable[[Any, Any, Any], dict[str, Any]] = lambda step, p, size: {}
    levels: int = 0
    share: float = 0.0
    points: float | None = None
    inside: bool = False


def _crop(step: Any, p: Any, size: Any) -> dict[str, Any]:
    top, left = step.anchor(p, size).astype(int).tolist()
    height, width = step.size
    return {"crop_coords": (left, top, left + width, top + height)}


def _center(step: Any, p: Any, size: Any) -> dict[str, Any]:
    return A.CenterCrop(*step.size).get_params_dependent_on_data({"shape": size.astype(int)}, {})


def _window(step: Any, p: Any, size: Any) -> dict[str, Any]:
    (top, left), (height, width) = (part.astype(int).tolist() for part in step.window(p, size))
    return {"crop_coords": (left, top, left + width, top + height)}


def _holes(step: Any, p: Any, size: Any) -> dict[str, Any]:
    anchors, shapes = (part.astype(int) for part in step.holes(p, size))
    holes = np.concatenate([anchors[:, ::-1], (anchors + shapes)[:, ::-1]], -1)
    return {"holes": holes[shapes.prod(-1) > 0], "seed": 0}


def _rotate(step: Any, p: Any, size: Any) -> dict[str, Any]:
    transform = A.Rotate((float(p["angle"]), float(p["angle"])))
    shape = {"shape": (*size.astype(int).tolist(), 3)}
    return shape | transform.get_params_dependent_on_data(shape, {})


def _permute(step: Any, p: Any, size: Any) -> dict[str, Any]:
    return {"channels_shuffled": p["permutation"].tolist()}


CASES = {
    "HorizontalFlip": [Case(A.HorizontalFlip(p=1), points=1e-6)],
    "VerticalFlip": [Case(A.VerticalFlip(p=1), points=1e-6)],
    "Transpose": [Case(A.Transpose(p=1), points=1e-6)],
    "RandomRotate90": [
        Case(A.RandomRotate90(p=1), lambda step, p, size: {"factor": int(p["turns"])}, points=1e-6)
    ],
    "RandomCrop": [Case(A.RandomCrop(90, 101), _crop, points=1e-4)],
    "CenterCrop": [Case(A.CenterCrop(92, 101), _center, points=1e-4)],
    "Pad": [
        Case(A.Pad((3, 5, 7, 11), fill=(1, 2, 3)), points=1e-4),
        Case(A.Pad(9, border_mode=cv2.BORDER_REFLECT_101)),
    ],
    "Resize": [
        Case(A.Resize(77, 201), levels=1, share=0.3, points=1e-4),
        Case(A.Resize(50, 60, interpolation=cv2.INTER_NEAREST), points=1e-4),
    ],
    "RandomResizedCrop": [Case(A.RandomResizedCrop((64, 80)), _window, levels=1, share=0.3)],
    "Rotate": [
        Case(A.Rotate((-70, 20), p=1), _rotate, levels=1, share=1e-3, points=0.75, inside=True)
    ],
    "CoarseDropout": [
        Case(A.CoarseDropout((3, 6), (5, 20), (4, 30), fill=(9, 8, 7), p=1), _holes),
        Case(A.CoarseDropout((1, 4), (0.1, 0.4), (0.1, 0.9), p=1), _holes),
    ],
    "RandomBrightnessContrast": [
        Case(
            A.RandomBrightnessContrast((-0.4, 0.5), 0.7, p=1),
            lambda step, p, size: {"alpha": p["factor"], "beta": p["shift"] * 255},
        ),
    ],
    "RandomGamma": [
        Case(
            A.RandomGamma((40, 180), p=1),
            lambda step, p, size: {"gamma": p["gamma"]},
            levels=1,
            share=0.8,
        )
    ],
    "InvertImg": [Case(A.InvertImg(p=1))],
    "Solarize": [Case(A.Solarize((0.4, 0.4), p=1), lambda step, p, size: {"threshold": 0.4})],
    "Posterize": [Case(A.Posterize(3, p=1), lambda step, p, size: {"num_bits": 3})],
    "ToGray": [Case(A.ToGray(p=1), levels=1, share=0.6)],
    "ChannelShuffle": [Case(A.ChannelShuffle(p=1), _permute)],
}
"""Normalize is compared in test_adapter.py, with the step before it."""


@pytest.fixture(scope="module")
def image() -> NDArray[np.uint8]:
    path = min((find_or_write() / "photos").rglob("*.jpg"))
    return np.array(Image.open(path).convert("RGB").resize((131, 117)))


def test_every_counterpart_is_compared() -> None:
    assert CASES.keys() | {"Normalize"} == COUNTERPARTS.keys()


def name_case(case: Case) -> str:
    return type(case.transform).__name__


def _draw(case: Case) -> tuple[Any, dict[str, Any], Any]:
    name = type(case.transform).__name__
    row = COUNTERPARTS[name]
    parameters = dict(row.read(case.transform)) | ({"p": 1.0} if row.has_p else {})
    step = STEPS.find(row.step).model_validate(parameters).resolve(Spec.of_image(3))
    rng = np.random.default_rng(len(name))
    return row, step.sample(rng.random((6, step.num_uniforms))), step


@pytest.mark.parametrize(
    "case", [case for cases in CASES.values() for case in cases], ids=name_case
)
def test_pixels_are_albumentations(case: Case, image: NDArray[np.uint8]) -> None:
    _, drawn, step = _draw(case)
    size, pixels = np.array(image.shape[:2], np.float64), torch.from_numpy(image).permute(2, 0, 1)
    for n in range(len(next(iter(drawn.values()))) if drawn else 1):
        p = {name: values[n] for name, values in drawn.items()}
        params = {"shape": image.shape} | case.params(step, p, size)
        if isinstance(case.transform, A.Pad):
            params |= case.transform.get_params_dependent_on_data(params, {})
        theirs = case.transform.apply(image.copy(), **params)
        ours = step.torch(pixels, p).permute(1, 2, 0).numpy()
        assert ours.shape == theirs.shape
        apart = np.abs(ours.astype(int) - theirs)
        if case.inside:  # the border is weighed otherwise
            filled = (theirs > 0).all(-1).astype(np.uint8)
            apart = apart[cv2.erode(filled, np.ones((7, 7)), borderType=0, borderValue=0) > 0]
        assert apart.max(initial=0) <= case.levels, (apart > 0).mean()
        assert (apart > 0).mean() <= case.share


@pytest.mark.parametrize(
    "case", [c for cases in CASES.values() for c in cases if c.points is not None], ids=name_case
)
def test_boxes_and_points_are_albumentations(case: Case, image: NDArray[np.uint8]) -> None:
    _, drawn, step = _draw(case)
    size = np.array(image.shape[:2], np.float64)
    for n in range(len(next(iter(drawn.values()))) if drawn else 1):
        p = {name: values[n] for name, values in drawn.items()}
        params = {"shape": image.shape} | case.params(step, p, size)
        if isinstance(case.transform, A.Pad):
            params |= case.transform.get_params_dependent_on_data(params, {})
        moved = case.transform.apply_to_bboxes(normalize_bboxes(BOXES, image.shape[:2]), **params)
        points = case.transform.apply_to_keypoints(_as_keypoints(), **params)[:, :2]
        columns = {
            "boxes": AnnotationColumn("boxes", "image", "", BOXES.copy(), np.array([0, 3])),
            "points": AnnotationColumn("points", "image", "boxes", POINTS.copy(), None),
        }
        tracer = PointsTracer(Annotations(columns, SPECS, 1), size[None])
        tracer.spec = Spec.of_image(3)
        step.lower(tracer, {name: values[n : n + 1] for name, values in drawn.items()})
        seen: Any = tracer.annotations
        new_size = tuple(tracer.size[0].astype(int).tolist())
        limits = np.tile(new_size[::-1], 2)
        theirs = np.clip(denormalize_bboxes(moved, new_size), 0, limits)
        boxes = seen.values("boxes")
        if len(theirs) < len(boxes):  # Rotate drops those that leave the image
            boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(-1)]
        assert np.abs(boxes - theirs).max() <= case.points
        assert np.abs(seen.values("points")[:, 0] - points).max() <= case.points


def test_a_center_crop_may_be_one_pixel_beside(image: NDArray[np.uint8]) -> None:
    """Where 3, 7, 11 or so on pixels are cut along a side: 117 - 90 = 27."""
    step = STEPS.find("center_crop").model_validate({"size": [90, 101]})
    ours = step.torch(torch.from_numpy(image).permute(2, 0, 1), {}).permute(1, 2, 0).numpy()
    theirs = A.CenterCrop(90, 101)(image=image)["image"]
    assert np.array_equal(ours[:-1], theirs[1:])


def _as_keypoints() -> NDArray[np.float64]:
    """The points as rows of x, y, z, angle and scale."""
    return np.concatenate([POINTS[:, 0], np.zeros((len(POINTS), 3))], -1)
