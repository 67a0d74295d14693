"""What steps check of channels, colours and numbers per channel."""

import pytest

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.spec_checks import (
    add_fill,
    check_channels,
    check_fill,
    check_per_channel,
    check_picture,
    count_channels,
    has_channel_layout,
)
from gpupipe.pipeline.step import StepIncompatibleError

RGB = Spec.of_image(3)


def test_one_number_or_one_per_channel() -> None:
    plane = Spec.of_array("uint8", (8, 8), "HW")
    unknown = Spec.of_image(None)
    for numbers, spec in (((1,), RGB), ((1, 2, 3), RGB), ((1,), plane), ((1, 2), unknown)):
        assert check_per_channel("std", numbers, spec) is spec
    with pytest.raises(
        StepIncompatibleError, match=r"std has 2 numbers.* 3 channels: write one, or 3"
    ):
        check_per_channel("std", (1, 2), RGB)
    with pytest.raises(StepIncompatibleError, match=r"has 3 numbers.* 1 channel: write one$"):
        check_per_channel("mean", (1, 2, 3), plane)


@pytest.mark.parametrize(
    ("layout", "is_taken"),
    [("HW", True), ("HWC", True), ("CHW", True), ("TCHW", True), ("TDHWC", True),
     ("CTDHW", False), ("STCHW", False), ("ABTDHWC", False)],
)  # fmt: skip
def test_layouts_whose_channels_can_be_normalized(layout: str, is_taken: bool) -> None:
    assert has_channel_layout(layout) is is_taken
    spec = Spec.of_array("float32", (4,) * len(layout), layout)
    if is_taken:
        assert check_channels(spec) is spec
    else:
        with pytest.raises(StepIncompatibleError, match=f"too many axes .layout {layout}"):
            check_channels(spec)


def test_pictures_have_one_to_four_channels_of_uint8_or_floats() -> None:
    for dtype in ("uint8", "float16", "float32"):
        for shape, layout in (((4, 8, 8), "CHW"), ((8, 8, 1), "HWC"), ((8, 8), "HW")):
            spec = Spec.of_array(dtype, shape, layout)
            assert check_picture(spec) is spec
    for spec, words in (
        (Spec.of_array("uint8", (5, 8, 8), "CHW"), "1 to 4 channels, but the array has 5"),
        (Spec.of_array("int16", (3, 8, 8), "CHW"), "gets int16: write 'to_dtype"),
        (Spec.of_array("uint8", (2, 3, 8, 8), "TCHW"), "further axes .layout TCHW"),
    ):
        with pytest.raises(StepIncompatibleError, match=words):
            check_picture(spec)


def test_a_fill_is_a_number_of_the_dtype() -> None:
    for dtype, fill in (("uint8", 255), ("int16", -32768), ("float16", -1e9), ("bool", 1)):
        check_fill((fill,), Spec.of_array(dtype, (3, 8, 8), "CHW"))
    for dtype, fill, words in (
        ("uint8", 256, "fill is 256, but uint8 holds 0 to 255"),
        ("int16", -40000, "fill is -40000, but int16 holds -32,768 to 32,767"),
        ("bool", 2, "bool holds 0 to 1"),
    ):
        with pytest.raises(StepIncompatibleError, match=words):
            check_fill((0, 0, fill), Spec.of_array(dtype, (3, 8, 8), "CHW"))
    with pytest.raises(StepIncompatibleError, match="value has 2 numbers"):
        check_fill((0, 0), RGB, "value")


def test_a_fill_outside_0_to_1_is_remembered_of_scaled_floats_alone() -> None:
    floats = Spec.of_image(3, dtype="float32")
    normalized = Spec.of_image(3, dtype="float32").with_values("normalized")
    assert add_fill((0, 1.5), floats).pixels.values == "filled"
    assert add_fill((-0.1,), floats).pixels.values == "filled"
    for fill, spec in (((0, 1), floats), ((7,), RGB), ((7,), normalized)):
        assert add_fill(fill, spec) is spec


def test_an_image_without_an_axis_of_channels_has_one() -> None:
    assert count_channels(Spec.of_array("uint8", (8, 8), "HW")) == 1
    assert count_channels(RGB) == 3
    assert count_channels(Spec.of_image(None)) is None
