import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document
from gpupipe.steps.containers import RandomOrder
from helpers.arrays import both, exactly, numbers, saved
from helpers.distributions import MOST, chi_square
from helpers.pipeline_texts import build, mistakes
from helpers.reference import differences, emitted, load

FLIP = {"random_horizontal_flip": {"p": 1}}
LAST = {"center_crop": {"size": 120}}
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
