"""What a step draws, by its name and number in the pipeline."""

from __future__ import annotations

import numpy as np

from gpupipe.sampling import draws
from helpers.pipeline_texts import build


def test_a_step_draws_by_its_name_and_number() -> None:
    built = build(
        "decode", "random_horizontal_flip", "random_affine: {degrees: 5}", "random_horizontal_flip"
    )
    assert [e.key for e in built.entries] == [
        "decode",
        "random_horizontal_flip",
        "random_affine",
        "random_horizontal_flip_2",
    ]
    ids = np.arange(1000, dtype=np.int64)
    first, second = (built.entries[i].parameters(1, 2, ids)["flip"] for i in (1, 3))
    assert abs((first == second).mean() - 0.5) < 0.1, "two flips are independent"
    expected = (
        draws.uniform(1, 2, ids, draws.stream("random_horizontal_flip_2"), 1)[:, 0] < 0.5
    ).astype(np.int32)
    assert (second == expected).all()


def test_a_steps_draws_do_not_depend_on_the_other_steps() -> None:
    ids = np.arange(10, dtype=np.int64)
    few, many = (
        build("decode", "random_affine: {degrees: 5}"),
        build("decode", "resize: {size: 8}", "random_vertical_flip", "random_affine: {degrees: 5}"),
    )
    assert (
        few.entries[-1].parameters(1, 2, ids)["angle"]
        == many.entries[-1].parameters(1, 2, ids)["angle"]
    ).all()


def test_a_step_without_chance_draws_nothing() -> None:
    assert build("decode").entries[0].parameters(0, 0, np.arange(3, dtype=np.int64)) == {}


# Steps of others
