from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.dataset.spec import Spec
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document
from gpupipe.steps.containers import Identity, RandomApply, RandomChoice, RandomOrder
from helpers.arrays import both, exactly, numbers, saved
from helpers.distributions import MOST, chi_square
from helpers.full_product import IS_FULL
from helpers.pipeline_texts import build, mistakes
from helpers.reference import differences, emitted, load

FLIP = {"random_horizontal_flip": {"p": 1}}
LAST = {"center_crop": {"size": 120}}
EXACT_APPLY: list[list[Any]] = [
    [FLIP],
    [FLIP, {"pad": {"padding": [9, 0, 3, 5], "fill": [1, 2, 3]}}],
    [{"pad": {"padding": 8, "padding_mode": "reflect"}}, "random_vertical_flip"],
    [{"random_crop": {"size": 100}}, {"random_zoom_out": {"side_range": [1, 2]}}],
    [{"random_affine": {"degrees": 0, "translate": [0.2, 0.2]}}],
    ["identity"],
]


SHIFTED = {"pad": {"padding": [5, 0, 0, 0], "fill": 3}}
NESTED = {
    "random_apply": {
        "p": 0.8,
        "transforms": [
            {
                "random_choice": {
                    "p": [3, 1, 1],
                    "transforms": [
                        {"random_order": {"transforms": [FLIP, SHIFTED]}},
                        {"random_apply": {"transforms": ["random_vertical_flip", SHIFTED]}},
                        "identity",
                    ],
                }
            },
            {"random_crop": {"size": [105, 110]}},
        ],
    }
}


def apply(transforms: list[Any], p: float = 0.5) -> dict[str, Any]:
    return {"random_apply": {"transforms": transforms, "p": p}}


def build_apply(*transforms: Any, p: float = 0.5) -> RandomApply:
    document = Document("p", ["decode", apply(list(transforms), p)])
    step = build_pipeline("p", document).entries[1].step
    assert isinstance(step, RandomApply)
    return step


CASES = [
    (transforms, p)
    for number, transforms in enumerate(EXACT_APPLY)
    for p in ((0, 0.5, 1) if IS_FULL else (0.5, number % 2))
]


@pytest.mark.parametrize(("transforms", "p"), CASES, ids=str)
def test_images_of_differing_sizes_are_exact_in_apply(
    small_gallery: Path, transforms: list[Any], p: float
) -> None:
    found = differences(small_gallery, apply(transforms, p), LAST, batch_size=5)
    assert max(d.most for d in found) == 0


def test_floats_are_exact_and_gray_images_as_after_decode(small_gallery: Path) -> None:
    """Scaled floats differ by their last bit, gray levels by one."""
    scaled = {"to_dtype": {"dtype": "float32", "scale": True}}
    for mode, most in (("rgb", 1e-6), ("gray", 1.01 / 255)):
        found = differences(
            small_gallery,
            scaled,
            apply([FLIP]),
            LAST,
            decode={"mode": mode},
            batch_size=5,
        )
        assert max(d.most for d in found) <= most


def test_interpolated_pixels_agree_as_without_it(small_gallery: Path) -> None:
    steps = [{"random_perspective": {"p": 1, "interpolation": "nearest"}}, {"resize": {"size": 90}}]
    found = differences(small_gallery, apply(steps), {"resize": {"size": [64, 64]}}, batch_size=5)
    assert max(d.mean for d in found) < 0.6


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("CHW", "uint8"), ("HWC", "float32"), ("HW", "bool"), ("TCHW", "int64"), ("CDHW", "uint8")],
)
def test_arrays_are_exact_of_apply(tmp_path: Path, layout: str, dtype: str) -> None:
    sizes = {"C": 3, "H": 9, "W": 12, "T": 2, "D": 5}
    shape = tuple(sizes[axis] for axis in layout)
    data = saved(tmp_path, numbers(dtype, (7, *shape)), layout=layout)
    last = {"center_crop": {"size": 7}}
    exactly(both(data, [apply([FLIP, {"pad": {"padding": 1}}]), last], batch_size=4))


def test_a_container_among_other_steps(small_gallery: Path) -> None:
    """What was deferred before it, such as a crop of the decoder, is done before it."""
    steps = [{"random_crop": {"size": 110}}, "random_vertical_flip", apply([FLIP])]
    more = [{"random_crop": {"size": 100}}, "random_horizontal_flip"]
    found = differences(small_gallery, *steps, *more, batch_size=5)
    assert max(d.most for d in found) == 0


def test_nested_containers_are_exact(small_gallery: Path) -> None:
    found = differences(small_gallery, NESTED, LAST, epochs=range(3), batch_size=5)
    assert max(d.most for d in found) == 0


def test_p_is_the_share_of_samples() -> None:
    step = build_apply("random_horizontal_flip", p=0.3)
    p = step.sample(np.random.default_rng(0).random((20_000, step.num_uniforms)))
    assert abs(p["runs"].mean() - 0.3) < 0.015, "within 4.6 standard deviations"
    flips = [p["0.flip"][p["runs"] == runs].mean() for runs in (0, 1)]
    assert max(abs(share - 0.5) for share in flips) < 0.03, "their draws are independent"


@pytest.mark.parametrize(("p", "runs"), [(0, 0), (1, 1)])
def test_p_at_its_ends(p: float, runs: int) -> None:
    step = build_apply(FLIP, p=p)
    drawn = step.sample(np.random.default_rng(0).random((1000, step.num_uniforms)))
    assert (drawn["runs"] == runs).all()


def test_the_steps_run_in_order_or_not_at_all() -> None:
    step = build_apply({"pad": {"padding": [1, 0, 0, 0], "fill": 5}}, FLIP)
    image = torch.ones(1, 2, 3, dtype=torch.uint8)
    for runs, width in ((0, 3), (1, 4)):
        made = step.torch(image, {"runs": runs, "1.flip": 1})
        assert made.shape == (1, 2, width)
    assert made[0, 0].tolist() == [1, 1, 1, 5]


def test_the_operators_are_those_of_the_steps_of_apply(small_gallery: Path) -> None:
    with load(small_gallery, apply([FLIP, {"pad": {"padding": 3}}])) as loader:
        assert emitted(loader) == ["decoders.image", "flip", "slice", "transpose"]


def test_a_size_that_differs_is_known_to_differ() -> None:
    pipeline = build("decode", "resize: {size: [40, 40]}", f"random_apply: {{transforms: [{PAD}]}}")
    spec = pipeline.output_spec
    assert (spec.size, spec.sides, spec.at_least) == (None, (40, None), (40, 40))


PAD = "pad: {padding: [1, 0, 0, 0]}"
TO_FLOAT = "to_dtype: {dtype: float32, scale: true}"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            f"{{transforms: [random_vertical_flip, {TO_FLOAT}]}}",
            [
                "2:53: random_apply cannot stand here: the dtype would differ from sample to "
                "sample: float32 after all steps, uint8 after no step: move the step that changes "
                "it out of the list"
            ],
        ),
        (
            "{transforms: [grayscale, random_vertical_flip]}",
            [
                "2:31: random_apply cannot stand here: the channels would differ from sample to "
                "sample: 1 after all steps, 3 after no step: move the step that changes it out of "
                "the list"
            ],
        ),
        (
            "{p: 0.5}",
            [
                "2:3: random_apply.transforms: missing; write 'transforms: ...' (the steps)",
            ],
        ),
        (
            "{transforms: []}",
            [
                "2:30: random_apply.transforms is [], but should be a list of steps, each '- name: "
                "{parameter: value}' or '- name'"
            ],
        ),
        (
            "{transforms: [random_vertical_flip], p: 2}",
            ["2:57: random_apply.p is 2, but should be at most 1"],
        ),
    ],
)
def test_mistakes_of_apply(text: str, messages: list[str]) -> None:
    assert mistakes("decode", f"random_apply: {text}") == messages


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
    import torch
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


EXACT_ORDER: list[list[Any]] = [
    [FLIP],
    [FLIP, {"pad": {"padding": [9, 0, 0, 0], "fill": [1, 2, 3]}}],
    [
        FLIP,
        {"pad": {"padding": [9, 0, 0, 5], "padding_mode": "edge"}},
        {"random_crop": {"size": [110, 105]}},
        {"random_zoom_out": {"side_range": [1, 2]}},
    ],
]


def order(transforms: list[Any]) -> dict[str, Any]:
    return {"random_order": {"transforms": transforms}}


def build_order(*transforms: Any) -> RandomOrder:
    document = Document("p", ["decode", order(list(transforms))])
    step = build_pipeline("p", document).entries[1].step
    assert isinstance(step, RandomOrder)
    return step


@pytest.mark.parametrize("transforms", EXACT_ORDER, ids=str)
def test_images_of_differing_sizes_are_exact_in_order(
    small_gallery: Path, transforms: list[Any]
) -> None:
    found = differences(small_gallery, order(transforms), LAST, epochs=range(2), batch_size=5)
    assert max(d.most for d in found) == 0


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("CHW", "uint8"), ("HWC", "float32"), ("HW", "int64"), ("CDHW", "uint8")],
)
def test_arrays_are_exact_of_order(tmp_path: Path, layout: str, dtype: str) -> None:
    sizes = {"C": 3, "H": 9, "W": 12, "D": 5}
    shape = tuple(sizes[axis] for axis in layout)
    data = saved(tmp_path, numbers(dtype, (7, *shape)), layout=layout)
    steps = [FLIP, {"pad": {"padding": 1, "fill": 1}}, {"random_crop": {"size": 5}}]
    exactly(both(data, [order(steps), {"center_crop": {"size": 7}}], batch_size=4))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_all_orders_are_equally_probable(count: int) -> None:
    step = build_order(*["identity"] * count)
    orders = step.sample(np.random.default_rng(0).random((20_000, step.num_uniforms)))["order"]
    counts = Counter(map(tuple, orders.tolist()))
    assert counts.keys() == set(itertools.permutations(range(count)))
    assert count == 1 or chi_square(list(counts.values())) < MOST


def test_the_reference_runs_the_steps_in_that_order() -> None:
    step = build_order({"pad": {"padding": [1, 0, 0, 0], "fill": 5}}, FLIP)
    image = torch.ones(1, 1, 2, dtype=torch.uint8)
    p = {"order": np.array([0, 1]), "1.flip": 1}
    assert step.torch(image, p).tolist() == [[[1, 1, 5]]]
    assert step.torch(image, p | {"order": np.array([1, 0])}).tolist() == [[[5, 1, 1]]]


def test_both_orders_occur_in_a_batch(small_gallery: Path) -> None:
    """The image is padded before or after it is mirrored: 0 on the left or on the right."""
    steps = order([{"pad": {"padding": [7, 0, 0, 0]}}, FLIP])
    found = differences(small_gallery, {"resize": {"size": [50, 50]}}, steps, batch_size=10)
    left = {bool((d.image[..., :7] == 0).all()) for d in found}
    right = {bool((d.image[..., -7:] == 0).all()) for d in found}
    assert left == right == {False, True}


def test_each_place_has_the_operators_of_all_steps(small_gallery: Path) -> None:
    with load(small_gallery, order([FLIP, {"pad": {"padding": 3}}])) as loader:
        assert emitted(loader) == ["decoders.image", *["flip", "slice"] * 2, "transpose"]


def test_steps_are_checked_for_any_place() -> None:
    """center_crop after pad: the size is not known to the step after them."""
    text = "random_order: {transforms: [center_crop: {size: 20}, pad: {padding: 1}]}"
    spec = build("decode", "resize: {size: [40, 40]}", text).output_spec
    assert (spec.size, spec.channels) == (None, 3)
    assert max(spec.at_least) <= 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{transforms: [random_vertical_flip, to_dtype: {dtype: float32}]}",
            "2:53: random_order cannot stand here: to_dtype makes (3, ?, ?) float32 out of (3, ?, "
            "?) uint8, which the steps after it in any order must take: move it out of the list",
        ),
        (
            "{transforms: [grayscale, random_vertical_flip]}",
            "2:31: random_order cannot stand here: grayscale makes (1, ?, ?) uint8 out of (3, ?, "
            "?) uint8, which the steps after it in any order must take: move it out of the list",
        ),
        (
            "{transforms: []}",
            "2:30: random_order.transforms is [], but should be a list of steps, each '- name: "
            "{parameter: value}' or '- name'",
        ),
    ],
)
def test_mistakes_of_order(text: str, message: str) -> None:
    assert mistakes("decode", f"random_order: {text}") == [message]


def test_pixels_stay(small_gallery: Path) -> None:
    assert max(d.most for d in differences(small_gallery, "identity")) == 0


def test_it_is_no_operator(small_gallery: Path) -> None:
    with load(small_gallery) as without, load(small_gallery, "identity") as loader:
        assert emitted(loader) == emitted(without)


def test_it_takes_all_arrays() -> None:
    for dtype, layout in itertools.product(DTYPES, ["CHW", "L", "CDHW", "TQ"]):
        spec = Spec.of_array(dtype, (4, 5, 6, 7)[: len(layout)], layout)
        assert Identity().infer_spec(spec) == spec
