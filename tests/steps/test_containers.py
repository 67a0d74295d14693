import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.dataset.spec import Spec
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document
from gpupipe.steps.containers import Identity, RandomApply
from helpers.arrays import both, exactly, numbers, saved
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


def test_pixels_stay(small_gallery: Path) -> None:
    assert max(d.most for d in differences(small_gallery, "identity")) == 0


def test_it_is_no_operator(small_gallery: Path) -> None:
    with load(small_gallery) as without, load(small_gallery, "identity") as loader:
        assert emitted(loader) == emitted(without)


def test_it_takes_all_arrays() -> None:
    for dtype, layout in itertools.product(DTYPES, ["CHW", "L", "CDHW", "TQ"]):
        spec = Spec.of_array(dtype, (4, 5, 6, 7)[: len(layout)], layout)
        assert Identity().infer_spec(spec) == spec
