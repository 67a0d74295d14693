from pathlib import Path

import pydantic
import pytest
import torch

from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.steps.to_dtype import Normalize
from helpers.reference import differences, emitted, load, operators


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scale", [True, False])
def test_from_levels_to_floats(small_gallery: Path, dtype: str, scale: bool) -> None:
    found = differences(small_gallery, {"to_dtype": {"dtype": dtype, "scale": scale}})
    assert found[0].image.dtype == getattr(torch, dtype)
    step = 2**-11 if dtype == "float16" else 2**-23
    assert max(d.most for d in found) <= step * (1 if scale else 255)


def test_there_and_back(small_gallery: Path) -> None:
    found = differences(
        small_gallery,
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"to_dtype": {"dtype": "uint8", "scale": True}},
    )
    assert found[0].image.dtype == torch.uint8
    assert max(d.most for d in found) == 0


def test_there_and_back_without_scaling_truncates(small_gallery: Path) -> None:
    steps = (
        {"to_dtype": {"dtype": "float32"}},
        {"normalize": {"mean": [0.25], "std": [1.1]}},
        {"to_dtype": {"dtype": "uint8"}},
    )
    found = differences(small_gallery, *steps)
    assert max(d.most for d in found) <= 1
    assert max(d.mean for d in found) < 0.01


def test_nothing_is_done_twice(small_gallery: Path) -> None:
    steps = (
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
    )
    assert max(d.most for d in differences(small_gallery, *steps)) <= 2**-23
    with load(small_gallery, *steps) as loader:
        assert emitted(loader) == ["decoders.image", "crop_mirror_normalize"]


FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
IMAGENET = {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}


def test_agrees_to_float_rounding(small_gallery: Path) -> None:
    assert max(d.most for d in differences(small_gallery, FLOATS, IMAGENET)) < 2e-6


def test_in_levels(small_gallery: Path) -> None:
    found = differences(
        small_gallery,
        {"to_dtype": {"dtype": "float32"}},
        {"normalize": {"mean": [127.5], "std": [60.0]}},
    )
    assert max(d.most for d in found) < 1e-5


def test_twice(small_gallery: Path) -> None:
    assert (
        max(
            d.most
            for d in differences(
                small_gallery, FLOATS, IMAGENET, {"normalize": {"mean": [0.1], "std": [2.0]}}
            )
        )
        < 2e-6
    )


def test_flip_floats_and_layout_are_one_operator(small_gallery: Path) -> None:
    steps = ("random_horizontal_flip", FLOATS, IMAGENET)
    assert max(d.most for d in differences(small_gallery, *steps)) < 2e-6
    with load(small_gallery, *steps) as loader:
        assert operators(loader)[-1] == (
            "crop_mirror_normalize",
            "cpu",
            ("random_horizontal_flip", "to_dtype", "normalize"),
        )


def test_after_normalising_steps_still_work(small_gallery: Path) -> None:
    found = differences(
        small_gallery, FLOATS, IMAGENET, {"center_crop": {"size": 300}}, "random_vertical_flip"
    )
    assert max(d.most for d in found) < 2e-6


def test_levels_are_refused() -> None:
    with pytest.raises(StepIncompatibleError, match="to_dtype"):
        Normalize(mean=(0.5,), std=(0.5,)).infer_spec(Spec.of_image(3))


def test_channels_must_fit() -> None:
    with pytest.raises(StepIncompatibleError, match="3 channels"):
        Normalize(mean=(0.5, 0.5), std=(0.5, 0.5)).infer_spec(Spec.of_image(3, dtype="float32"))
    with pytest.raises(pydantic.ValidationError, match="one a channel in both"):
        Normalize(mean=(0.5, 0.5), std=(0.5,))
