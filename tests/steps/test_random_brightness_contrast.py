from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch

from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_brightness_contrast import RandomBrightnessContrast
from helpers.color_differences import EXACT, drawn, is_share, is_uniform, most

NAME = "random_brightness_contrast"
STRONG = {"p": 1, "brightness_limit": 0.7, "contrast_limit": [-0.9, 2]}


@pytest.mark.parametrize("by_max", [True, False])
@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_the_references(small_gallery: Path, gray: bool, by_max: bool) -> None:
    assert most(small_gallery, NAME, gray=gray, brightness_by_max=by_max, **STRONG) <= 1


@pytest.mark.parametrize("by_max", [True, False])
def test_floats_are_the_references(small_gallery: Path, by_max: bool) -> None:
    assert most(small_gallery, NAME, "float32", brightness_by_max=by_max, **STRONG) <= EXACT


@pytest.mark.parametrize("op", ["scale_and_shift", "scale_and_shift_by_mean"])
def test_the_cpu_engine_computes_each_level_by_the_formula(op: str) -> None:
    rng = np.random.default_rng(0)
    factors, shifts = rng.uniform(-0.5, 3, 50), rng.uniform(-1, 1, 50)
    image = np.arange(256 * 3, dtype=np.int64).reshape(16, 16, 3).astype(np.uint8)
    image[:4] = 200
    tracer = Tracer([(16, 16)] * 50, find_rules(), Spec.of_image(3))
    tracer.color(op, factors, shifts)
    program = tracer.program()
    share = 255.0 if op == "scale_and_shift" else float(image.mean())
    for n in range(50):
        values = image.astype(np.float32) * np.float32(factors[n]) + np.float32(shifts[n] * share)
        expected = np.clip(values, 0, 255).astype(np.uint8)
        assert np.array_equal(as_tensor(program.run(image, n)).permute(1, 2, 0).numpy(), expected)


def test_brightness_is_a_share_of_the_range_or_of_the_mean() -> None:
    image = torch.tensor([[[10, 20], [30, 240]]], dtype=torch.uint8)
    p = {"runs": np.int32(1), "factor": np.float64(1.5), "shift": np.float64(0.1)}
    by_max = RandomBrightnessContrast().torch(image, p)
    assert by_max.flatten().tolist() == [40, 55, 70, 255]
    by_mean = RandomBrightnessContrast(brightness_by_max=False).torch(image, p)
    assert by_mean.flatten().tolist() == [22, 37, 52, 255]
    assert torch.equal(RandomBrightnessContrast().torch(image, p | {"runs": np.int32(0)}), image)


def test_what_is_drawn() -> None:
    values = drawn(NAME, brightness_limit=0.3, contrast_limit=[-0.1, 0.4], p=0.3)
    assert is_share(values["runs"], 0.3)
    assert is_uniform(values["factor"], 0.9, 1.4)
    assert is_uniform(values["shift"], -0.3, 0.3)


@pytest.mark.parametrize("limit", [[0.2, -0.2], -0.1, [0.1], [0, float("inf")]])
def test_other_limits_are_refused(limit: object) -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomBrightnessContrast(brightness_limit=limit)
