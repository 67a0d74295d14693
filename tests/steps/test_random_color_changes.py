from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from torchvision.transforms import v2

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.steps.random_color_changes import (
    RandomAdjustSharpness,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from helpers.color_differences import EXACT, compared, drawn, is_share, most

PARAMETERS: dict[str, dict[str, Any]] = {
    "random_adjust_sharpness": {"sharpness_factor": 2},
    "random_autocontrast": {},
    "random_equalize": {},
    "random_invert": {},
    "random_posterize": {"bits": 3},
    "random_solarize": {"threshold": 128},
}
WITHIN_ONE = ("random_adjust_sharpness", "random_autocontrast", "random_equalize")
"""The steps whose levels may differ from torchvision's by one."""


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_torchvisions(small_gallery: Path, gray: bool, name: str) -> None:
    difference = most(small_gallery, name, gray=gray, p=1, **PARAMETERS[name])
    assert difference <= int(name in WITHIN_ONE)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("random_adjust_sharpness", {"sharpness_factor": 2}),
        ("random_autocontrast", {}),
        ("random_invert", {}),
        ("random_solarize", {"threshold": 0.5}),
    ],
)
def test_floats_are_torchvisions(
    small_gallery: Path, name: str, parameters: dict[str, Any]
) -> None:
    assert most(small_gallery, name, "float32", p=1, **parameters) <= EXACT


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_share_of_the_samples_is_changed(name: str) -> None:
    parameters, model = PARAMETERS[name], STEPS.find(name)
    assert is_share(drawn(name, p=0.3, **parameters)["runs"], 0.3)
    theirs = getattr(v2, model.__name__)(*parameters.values())
    assert model.model_validate(parameters).p == theirs.p  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_probability_above_1_is_refused(name: str) -> None:
    with pytest.raises(pydantic.ValidationError, match="less than or equal to 1"):
        STEPS.find(name).model_validate(PARAMETERS[name] | {"p": 1.5})


@pytest.mark.parametrize(
    ("step", "dtype"), [(RandomEqualize(), "float16"), (RandomPosterize(bits=4), "float32")]
)
def test_floats_are_refused(step: Any, dtype: str) -> None:
    with pytest.raises(
        StepIncompatibleError, match=f"works on uint8, but gets {dtype}: write 'to_dtype"
    ):
        step.infer_spec(Spec.of_image(3, dtype=dtype))


@pytest.mark.parametrize(
    ("step", "theirs"),
    [
        *((RandomPosterize(bits=n, p=1), v2.RandomPosterize(n, p=1)) for n in (0, 1, 5)),
        *((RandomSolarize(threshold=n, p=1), v2.RandomSolarize(n, p=1)) for n in (1, 100, 255)),
        *(
            (RandomAdjustSharpness(sharpness_factor=n, p=1), v2.RandomAdjustSharpness(n, p=1))
            for n in (0, 0.7, 3)
        ),
    ],
    ids=str,
)
def test_a_parameter_means_what_it_means_in_torchvision(step: Any, theirs: Any) -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 9, 12), np.uint8))
    assert torch.equal(step.torch(image, {"runs": np.int32(1)}), theirs(image))


@pytest.mark.parametrize("factor", [-0.1, float("inf"), True])
def test_other_factors_are_refused(factor: float) -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomAdjustSharpness.model_validate({"sharpness_factor": factor})


def test_a_batch_in_which_no_sample_is_drawn(small_gallery: Path) -> None:
    assert most(small_gallery, "random_adjust_sharpness", p=0, sharpness_factor=2) == 0


def test_the_mean_of_equalize_is_torchvisions_to_a_third_of_a_level(small_gallery: Path) -> None:
    """DALI rounds once for its own step, and again for PIL's."""
    assert max(abs(d.offset) for d in compared(small_gallery, "random_equalize", p=1)) < 0.33


def test_no_sample_or_all_are_inverted() -> None:
    assert drawn("random_invert", p=0)["runs"].max() == 0
    assert drawn("random_invert", p=1)["runs"].min() == 1
    assert RandomInvert().p == v2.RandomInvert().p


def test_only_the_drawn_samples_are_changed(small_gallery: Path) -> None:
    assert most(small_gallery, "random_invert", p=0.5) == 0


@pytest.mark.parametrize("bits", [-1, 9, 2.5, True])
def test_other_bits_are_refused(bits: float) -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomPosterize.model_validate({"bits": bits})


@pytest.mark.parametrize(("dtype", "highest"), [("uint8", 255), ("float32", 1)])
def test_a_threshold_that_no_pixel_reaches_is_refused(dtype: str, highest: int) -> None:
    spec = Spec.of_image(3, dtype=dtype)
    assert RandomSolarize(threshold=highest).infer_spec(spec) == spec
    with pytest.raises(
        StepIncompatibleError, match=f"threshold is 256, but {dtype} holds .*: write"
    ):
        RandomSolarize(threshold=256).infer_spec(spec)


def test_an_infinite_threshold_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomSolarize(threshold=float("inf"))


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_are_torchvisions(small_gallery: Path, dtype: str, gray: bool) -> None:
    assert most(small_gallery, "random_channel_permutation", dtype, gray) == 0


def test_the_channels_are_in_another_order(small_gallery: Path) -> None:
    """In five of six images, on average."""
    permutations = drawn("random_channel_permutation", 10)["permutation"]
    assert (permutations != np.arange(3)).any(-1).sum() > 5
    assert len(compared(small_gallery, "random_channel_permutation")) == 10


def test_the_six_orders_are_equally_probable() -> None:
    permutations = drawn("random_channel_permutation", 60_000)["permutation"]
    orders, counts = np.unique(permutations, axis=0, return_counts=True)
    assert len(orders) == 6
    assert np.abs(counts - 10_000).max() < 500
