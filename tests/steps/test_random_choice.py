from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document
from gpupipe.steps.containers import RandomChoice
from helpers.arrays import both, exactly, numbers, saved
from helpers.distributions import MOST, chi_square
from helpers.pipeline_texts import build, mistakes
from helpers.reference import differences, emitted, load

FLIP = {"random_horizontal_flip": {"p": 1}}
LAST = {"center_crop": {"size": 120}}
TO_FLOAT = "to_dtype: {dtype: float32, scale: true}"

EXACT_CHOICE: list[list[Any]] = [
    [FLIP, {"random_vertical_flip": {"p": 1}}],
    ["identity", {"pad": {"padding": 9}}, {"random_crop": {"size": [105, 110]}}],
    [FLIP],
    [
        {"random_erasing": {"p": 1, "value": 200}},
        {"random_affine": {"degrees": 0, "translate": [0.2, 0.2]}},
        {"pad": {"padding": 8, "padding_mode": "edge"}},
        {"random_zoom_out": {"p": 1, "side_range": [1, 2]}},
        FLIP,
    ],
]


def choice(transforms: list[Any], p: list[float] | None = None) -> dict[str, Any]:
    return {"random_choice": {"transforms": transforms} | ({"p": p} if p else {})}


def build_choice(count: int, p: list[float] | None = None) -> RandomChoice:
    document = Document("p", ["decode", choice(["identity"] * count, p)])
    step = build_pipeline("p", document).entries[1].step
    assert isinstance(step, RandomChoice)
    return step


def drawn(step: RandomChoice, count: int = 20_000) -> np.ndarray:
    uniform = np.random.default_rng(0).random((count, step.num_uniforms))
    return step.sample(uniform)["choice"]


@pytest.mark.parametrize("transforms", EXACT_CHOICE, ids=str)
def test_images_of_differing_sizes_are_exact_in_choice(
    small_gallery: Path, transforms: list[Any]
) -> None:
    found = differences(small_gallery, choice(transforms), LAST, epochs=range(2), batch_size=5)
    assert max(d.most for d in found) == 0


def test_resized_images_agree(small_gallery: Path) -> None:
    ways = [
        {"random_resized_crop": {"size": 200}},
        {"resize": {"size": [300, 250]}},
        {"random_resize": {"min_size": 100, "max_size": 300}},
    ]
    last = {"center_crop": {"size": 64}}
    found = differences(small_gallery, choice(ways), last, batch_size=5)
    assert max(d.mean for d in found) < 0.35
    assert max(d.most for d in found) <= 1


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("CHW", "uint8"), ("HWC", "float32"), ("HW", "bool"), ("TCHW", "int64"), ("CDHW", "uint8")],
)
def test_arrays_are_exact_of_choice(tmp_path: Path, layout: str, dtype: str) -> None:
    sizes = {"C": 3, "H": 9, "W": 12, "T": 2, "D": 5}
    shape = tuple(sizes[axis] for axis in layout)
    data = saved(tmp_path, numbers(dtype, (7, *shape)), layout=layout)
    ways = [FLIP, {"pad": {"padding": 1}}, {"random_crop": {"size": 5}}]
    exactly(both(data, [choice(ways), {"center_crop": {"size": 7}}], batch_size=4))


@pytest.mark.parametrize("p", [None, [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], [1e-3, 5e-3, 2e-3, 1e-3]])
def test_choices_have_their_weights(p: list[float] | None) -> None:
    counts = np.bincount(drawn(build_choice(4, p)), minlength=4)
    assert chi_square(counts, p or [1] * 4) < MOST


def test_choices_are_torchvisions() -> None:
    """torchvision's RandomChoice divides its weights by their sum, too."""
    from torchvision.transforms.v2 import RandomChoice as Torchvision

    class Number(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(self, counts: list[int]) -> list[int]:
            counts[self.number] += 1
            return counts

    torch.manual_seed(0)
    transform, counts = Torchvision([Number(n) for n in range(3)], p=[2, 5, 1]), [0, 0, 0]
    for _ in range(20_000):
        transform(counts)
    assert chi_square(counts, [2, 5, 1]) < MOST
    assert chi_square(np.bincount(drawn(build_choice(3, [2, 5, 1]))), [2, 5, 1]) < MOST


@pytest.mark.parametrize(
    ("p", "possible"), [([0, 1, 0], {1}), ([1, 0, 0], {0}), ([0, 0, 3], {2}), ([0, 2, 2], {1, 2})]
)
def test_a_weight_of_zero_is_never_drawn(p: list[float], possible: set[int]) -> None:
    step = build_choice(3, p)
    edges = np.array([[0.0], [0.5], [np.nextafter(0.5, 0)], [1 - 2.0**-53]])
    assert set(step.draw(edges)["choice"].tolist()) <= possible
    assert set(drawn(step, 1000).tolist()) == possible


def test_weights_whose_sum_is_rounded() -> None:
    """The last bound may be less than the largest draw."""
    step = build_choice(10, [0.1] * 10)
    assert step.draw(np.array([[1 - 2.0**-53]]))["choice"].tolist() == [9]


def test_each_step_has_draws_of_its_own() -> None:
    document = Document("p", ["decode", choice(["random_horizontal_flip"] * 3)])
    step = build_pipeline("p", document).entries[1].step
    p = step.sample(np.random.default_rng(0).random((5000, step.num_uniforms)))
    flips = np.stack([p[f"{n}.flip"] for n in range(3)] + [p["choice"] == 0])
    correlations = np.corrcoef(flips)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 0.07, "within 5 standard deviations"


def test_the_operators_are_those_of_the_steps_of_choice(small_gallery: Path) -> None:
    with load(small_gallery, choice([FLIP, "identity", {"pad": {"padding": 3}}])) as loader:
        assert emitted(loader) == ["decoders.image", "flip", "slice", "transpose"]


def test_the_size_is_that_of_all_ways_or_not_known() -> None:
    same = "random_choice: {transforms: [resize: {size: [9, 9]}, center_crop: {size: 9}]}"
    other = "random_choice: {transforms: [resize: {size: [9, 7]}, center_crop: {size: 9}]}"
    assert build("decode", same).output_spec.size == (9, 9)
    spec = build("decode", other).output_spec
    assert (spec.sides, spec.at_least) == ((9, None), (9, 7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{{transforms: [random_vertical_flip, {TO_FLOAT}]}}",
            "2:54: random_choice cannot stand here: the dtype would differ from sample to sample: "
            "float32 after to_dtype, uint8 after random_vertical_flip: move the step that changes "
            "it out of the list",
        ),
        (
            "{transforms: [grayscale, random_vertical_flip]}",
            "2:32: random_choice cannot stand here: the channels would differ from sample to "
            "sample: 1 after grayscale, 3 after random_vertical_flip: move the step that changes "
            "it out of the list",
        ),
        (
            "{transforms: [identity, grayscale], p: [1]}",
            "2:18: random_choice: p has 1 numbers for 2 steps: write one per step",
        ),
        (
            "{transforms: [identity, identity], p: [0, 0]}",
            "2:18: random_choice: p has no number above 0: write the weight of each step",
        ),
        (
            "{transforms: [identity], p: [-1]}",
            "2:47: random_choice.p.0 is -1, but should be at least 0",
        ),
        (
            "{transforms: identity}",
            "2:31: random_choice.transforms is 'identity', but should be a list of steps, each "
            "'- name: {parameter: value}' or '- name'",
        ),
    ],
)
def test_mistakes_of_choice(text: str, message: str) -> None:
    assert mistakes("decode", f"random_choice: {text}") == [message]
