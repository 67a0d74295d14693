from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.rgb import Rgb
from helpers.color_differences import compared
from helpers.reference import Difference


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_are_torchvisions(small_gallery: Path, dtype: str, gray: bool) -> None:
    found: list[Difference] = compared(small_gallery, "rgb", dtype, gray)
    assert max(d.most for d in found) == 0
    assert all(d.image.shape[0] == 3 for d in found)
    assert all(bool((d.image == d.image[:1]).all()) == gray for d in found)


def test_normalized_numbers_are_taken() -> None:
    """It copies numbers, whatever they are."""
    spec = Spec.of_image(1, dtype="float32").with_values("normalized")
    assert Rgb().infer_spec(spec).channels == 3


@pytest.mark.parametrize("shape", [(4, 8, 8), (2, 8, 8)])
def test_other_channels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(StepIncompatibleError, match="works on 1 or 3 channels"):
        Rgb().infer_spec(Spec.of_array("uint8", shape, "CHW"))


def test_an_array_without_channels_is_refused() -> None:
    with pytest.raises(StepIncompatibleError, match="no axis for them"):
        Rgb().infer_spec(Spec.of_array("uint8", (8, 8), "HW"))
