"""What all colour steps share: what they refuse, and that they leave masks alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.augment.color_step import ColorStep
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.pipeline.step_registry import STEPS
from helpers.every_step import COLORS
from helpers.loaders import ENGINES
from helpers.many_fields import loaded, make, samples
from helpers.pipeline_texts import FLOAT, NORM, build, mistakes

ANY_VALUES = {"gaussian_blur", "random_channel_permutation", "rgb"}
"""They copy or average numbers, whatever their range."""
UINT8 = {"jpeg", "random_equalize", "random_posterize"}


def example(name: str) -> ColorStep:
    options = next((o for o in COLORS[name] if o.get("threshold", 0) <= 1), {})
    return STEPS.find(name).model_validate(options)


def of(dtype: str, values: Any = "usual", channels: int | None = 3) -> Spec:
    return Spec.of_image(channels, 40, 50, dtype=dtype).with_values(values)


@pytest.mark.parametrize("name", COLORS)
def test_normalized_colours_and_unscaled_floats_are_refused(name: str) -> None:
    for values, message in (
        ("normalized", "normalized ones: move it before 'normalize'"),
        ("unscaled", "gets unscaled levels: write 'scale: true'"),
    ):
        spec = of("float32", values)
        if name in ANY_VALUES:
            example(name).infer_spec(spec)
            continue
        with pytest.raises(StepIncompatibleError, match=message):
            example(name).infer_spec(spec)


@pytest.mark.parametrize("name", COLORS)
def test_levels_and_scaled_floats_are_taken(name: str) -> None:
    assert example(name).infer_spec(of("uint8")) == of("uint8")
    for dtype in ("float16", "float32"):
        if name in UINT8:
            with pytest.raises(
                StepIncompatibleError, match=f"gets {dtype}: write 'to_dtype: {{dtype: "
            ):
                example(name).infer_spec(of(dtype))
        else:
            assert example(name).infer_spec(of(dtype)) == of(dtype)


@pytest.mark.parametrize("name", COLORS)
def test_other_arrays_are_refused(name: str) -> None:
    for spec, message in (
        (of("uint8", channels=4), "1 or 3 channels, but gets .*: leave it out"),
        (of("uint8", channels=None), "1 or 3 channels"),
        (Spec.of_array("uint8", [2, 3, 8, 8], "TCHW"), "further axes"),
        (Spec.of_array("uint8", [8], "L"), "height and width"),
        (of("int16"), "gets int16: write 'to_dtype: {dtype: .*, scale: true}' before it"),
        (Spec(), "encoded bytes"),
    ):
        with pytest.raises(StepIncompatibleError, match=message):
            example(name).infer_spec(spec)


def test_the_yaml_says_where_the_step_is_to_go() -> None:
    assert mistakes("decode", FLOAT, NORM, "random_invert") == [
        "4:3: random_invert cannot stand here: it works on colours from 0 to 1, but gets "
        "normalized ones: move it before 'normalize'"
    ]
    assert mistakes("decode", "to_dtype: {dtype: float32}", "random_invert") == [
        "3:3: random_invert cannot stand here: it works on float32 from 0 to 1, but gets unscaled "
        "levels: write 'scale: true' in the 'to_dtype' before it, or move it before 'to_dtype'"
    ]


def test_colours_after_a_fill_outside_their_range_are_refused() -> None:
    (mistake,) = mistakes("decode", FLOAT, "random_erasing: {value: -1}", "random_invert")
    assert "fills with a number outside them: write a fill or value from 0 to 1 there" in mistake
    build("decode", FLOAT, "random_invert", "random_erasing: {value: -1}")


def test_a_normalize_that_is_wrong_itself_is_remembered() -> None:
    assert len(mistakes("decode", FLOAT, "normalize: {mean: x, std: 1}", "random_invert")) == 2


@pytest.mark.parametrize(
    ("steps", "values"),
    [
        (["decode"], "usual"),
        (["decode", FLOAT], "usual"),
        (["decode", FLOAT, "to_dtype: {dtype: float16}"], "usual"),
        (["decode", "to_dtype: {dtype: float32}"], "unscaled"),
        (["decode", "to_dtype: {dtype: float32}", "to_dtype: {dtype: float16}"], "unscaled"),
        (["decode", "to_dtype: {dtype: float32}", "to_dtype: {dtype: uint8}"], "usual"),
        (["decode", FLOAT, NORM], "normalized"),
        (["decode", FLOAT, "random_erasing: {value: 2}"], "filled"),
        (["decode", FLOAT, "random_erasing: {value: [0, 1, 0.5]}"], "usual"),
        (["decode", "random_erasing: {value: 2}", FLOAT], "usual"),
        (["decode", FLOAT, "random_affine: {degrees: 9, fill: 128}"], "filled"),
        (["decode", FLOAT, "random_perspective: {fill: [0, 128, 0]}"], "filled"),
        (["decode", FLOAT, "random_rotation: {degrees: 9, fill: 128, expand: true}"], "filled"),
        (["decode", FLOAT, "random_zoom_out: {fill: -1}"], "filled"),
        (["decode", FLOAT, "pad: {padding: 2, fill: 2}"], "filled"),
        (["decode", FLOAT, "pad: {padding: 2, fill: 2, padding_mode: edge}"], "usual"),
        (["decode", FLOAT, "random_crop: {size: 8, padding: 2, fill: 2}"], "filled"),
        (["decode", FLOAT, "random_crop: {size: 8, fill: 2}"], "usual"),
        (["decode", FLOAT, "random_erasing: {value: 2}", NORM], "normalized"),
        (["decode", FLOAT, NORM, "random_erasing: {value: 2}"], "normalized"),
        (["decode", FLOAT, NORM, "resize: {size: 8}"], "normalized"),
        (["decode", FLOAT, NORM, "to_dtype: {dtype: float32}"], "normalized"),
        (["decode", "to_dtype: {dtype: float32}", NORM], "normalized"),
        (["decode", FLOAT, "random_apply: {transforms: [{" + NORM + "}]}"], "normalized"),
        (["decode", FLOAT, "random_order: {transforms: [{" + NORM + "}]}"], "normalized"),
    ],
    ids=str,
)
def test_what_the_numbers_are_after_some_steps(steps: list[str], values: str) -> None:
    assert build(*steps).output_spec.pixels.values == values


def test_in_a_random_order_a_colour_step_may_come_after_normalize() -> None:
    order = "random_order: {transforms: [random_invert, {" + NORM + "}]}"
    (mistake,) = mistakes("decode", FLOAT, order)
    assert "random_invert: it works on colours from 0 to 1, but gets normalized ones" in mistake


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return make(tmp_path, monkeypatch)


@pytest.mark.parametrize("options", ENGINES, ids=["dali", "cpu", "dataloader"])
def test_masks_are_left_alone(data: dict[str, Any], options: dict[str, Any]) -> None:
    both = {"on": ["image", "mask"]}
    steps = [
        "decode",
        {"decode": {"mode": "gray", "on": "mask"}},
        {"random_invert": {"p": 1, **both}},
        {"gaussian_blur": {"kernel_size": 3, **both}},
        {"rgb": both},
        {
            "random_apply": {
                "p": 1,
                "transforms": [{"random_posterize": {"bits": 1, "p": 1}}],
                **both,
            }
        },
    ]
    for sample in samples(loaded(data, steps, **options)).values():
        assert set(sample["mask"].unique().tolist()) == {100, 200}
        assert sample["mask"].shape[0] == 1
        assert not (sample["image"][0] == sample["mask"][0]).any()


@pytest.mark.parametrize("name", COLORS)
def test_a_mask_may_be_of_any_dtype(name: str) -> None:
    """As the class numbers that a loss takes."""
    spec = replace(Spec.of_array("int64", [1, 8, 8], "CHW"), kind="mask")
    step = example(name).adapt_to_mask().resolve(spec)
    p = {key: v[0] for key, v in step.sample(np.zeros((1, step.num_uniforms))).items()}
    mask = torch.arange(64).reshape(1, 8, 8)
    assert step.infer_spec(spec) == spec
    assert torch.equal(step.torch(mask, p), mask)
    assert step.model_dump() == example(name).model_dump()
