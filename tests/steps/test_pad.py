from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.steps.pad import Pad
from helpers.full_product import IS_FULL
from helpers.reference import differences

PADDINGS = [5, [3, 7], [1, 2, 3, 4], [0, 0, 9, 0]]
CASES = [
    (padding, mode)
    for number, mode in enumerate(["constant", "edge", "reflect", "symmetric"])
    for padding in (PADDINGS if IS_FULL else [PADDINGS[number - 1], PADDINGS[2]])
]


@pytest.mark.parametrize(("padding", "mode"), CASES, ids=str)
def test_exact(small_gallery: Path, padding: Any, mode: str) -> None:
    assert (
        max(
            d.most
            for d in differences(small_gallery, {"pad": {"padding": padding, "padding_mode": mode}})
        )
        == 0
    )


def test_fill_by_channel(small_gallery: Path) -> None:
    found = differences(small_gallery, {"pad": {"padding": 4, "fill": [10, 20, 30]}})
    assert max(d.most for d in found) == 0
    assert found[0].image[:, 0, 0].tolist() == [10, 20, 30]


def test_shape() -> None:
    made = Pad.model_validate({"padding": [1, 2, 3, 4]}).infer_spec(Spec.of_image(3, 10, 20))
    assert made.size == (16, 24)


def test_reflect_needs_enough_pixels() -> None:
    with pytest.raises(StepIncompatibleError, match="10x20"):
        Pad.model_validate({"padding": 10, "padding_mode": "reflect"}).infer_spec(
            Spec.of_image(3, 10, 20)
        )
