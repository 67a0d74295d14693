import inspect

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import COLOR_OPS, LUMA, ColorFunction, check_blur
from gpupipe.pipeline.step import SampleIncompatibleError

OF_OTHERS = {"solarize_add", "scale_and_shift", "scale_and_shift_by_mean"}
"""Functions of timm and Albumentations."""


def test_the_operations_are_functions_of_torchvision() -> None:
    assert {name for name in COLOR_OPS if not hasattr(F, name)} == OF_OTHERS


@pytest.mark.parametrize("channel", range(3))
def test_luma_is_torchvisions(channel: int) -> None:
    image = torch.zeros(3, 1, 1, dtype=torch.float64)
    image[channel] = 1.0
    assert float(F.rgb_to_grayscale(image)) == pytest.approx(LUMA[channel], abs=1e-7)


def test_every_operation_says_which_values_it_takes() -> None:
    """As the parameters of torchvision's function, or of the reference."""
    for name, op in COLOR_OPS.items():
        _, *parameters = inspect.signature(op.reference or getattr(F, name)).parameters.values()
        required = [p.name.rpartition("_")[2] for p in parameters if p.default is p.empty]
        assert [value.name.rpartition("_")[2] for value in op.values] == required, name


def test_solarize_add_is_timms() -> None:
    image = torch.arange(256, dtype=torch.float32)[None, None]
    expected = torch.where(image < 128, image + 30, image)
    assert torch.equal(color_ops.apply("solarize_add", image, [30]), expected)


def test_a_blur_needs_an_image_larger_than_half_of_its_kernel() -> None:
    check_blur([3, 5], [3, 2])
    with pytest.raises(SampleIncompatibleError, match="gaussian_blur"):
        check_blur([3, 5], [2, 2])


def test_a_row_of_another_package_has_a_name_and_a_formula_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(color_ops, "COLOR_OPS", dict(COLOR_OPS))
    with pytest.raises(ValueError, match="'invert' already: choose another name"):
        color_ops.register("invert", ColorFunction(formula=lambda pixels: 1 - pixels))
    with pytest.raises(ValueError, match="'mirror' has no formula"):
        color_ops.register("mirror", ColorFunction(reference=lambda image: image.flip(-1)))
