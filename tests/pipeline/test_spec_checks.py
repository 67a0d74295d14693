"""What steps say to arrays on which they make no sense, and what short forms mean for other axes
than an image's.
"""

import pickle
from typing import Any

import pytest
import torch

from gpupipe.dataset.layout import default_layout
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.pipeline.tensors import from_steps, to_steps


def array(layout: str, dtype: str = "float32", size: int | None = 8) -> Spec:
    return Spec.of_array(dtype, [size] * len(layout), layout)


def on(given: Spec, name: str, **parameters: Any) -> Spec:
    """What comes out of a step. Raises StepIncompatibleError."""
    return STEPS.find(name).model_validate(parameters).resolve(given).infer_spec(given)


REFUSED: list[tuple[str, dict[str, Any], Spec, str]] = [
    (
        "center_crop",
        {"size": 4},
        array("C"),
        "it works along height and width, depth or length, but the array has the layout 'C': "
        "set data.layout",
    ),
    (
        "center_crop",
        {"size": [4, 4]},
        array("CDHW"),
        r"size has 2 numbers, but the axes of space are D, H, W .*: write one number, or "
        r"\[depth, height",
    ),
    (
        "center_crop",
        {"size": [4, 4]},
        array("LC"),
        r"size has 2 numbers, but the axes of space are L \(layout LC\): write one number$",
    ),
    (
        "center_crop",
        {"size": [4, 4, 4]},
        array("CHW"),
        "size has 3 numbers, but the axes of space are H, W",
    ),
    (
        "random_crop",
        {"size": 9},
        array("CDHW"),
        "the crop needs at least 9x9x9 pixels, but the image has 8x8x8: write a smaller size",
    ),
    (
        "random_crop",
        {"size": 9},
        array("LC"),
        "the crop needs at least 9 pixels, but the image has 8",
    ),
    (
        "pad",
        {"padding": [1, 2, 3, 4]},
        array("CL"),
        r"padding has 4 numbers, .*: write one number, or \[before, after\]",
    ),
    (
        "pad",
        {"padding": [1, 2]},
        array("DHW"),
        r"padding has 2 numbers, .*: write one number, or \[left, top, front, right, bottom, "
        r"back\]",
    ),
    (
        "pad",
        {"padding": 1, "fill": 300},
        array("CHW", "uint8"),
        "fill is 300, but uint8 holds 0 to 255: write a number between them",
    ),
    ("pad", {"padding": 1, "fill": 2}, array("CHW", "bool"), "fill is 2, but bool holds 0 to 1"),
    (
        "pad",
        {"padding": 1, "fill": -129},
        array("CHW", "int8"),
        "fill is -129, but int8 holds -128 to 127",
    ),
    (
        "pad",
        {"padding": 1, "fill": [1, 2]},
        array("HW"),
        "fill has 2 numbers, but the image has 1 channel: write one",
    ),
    (
        "pad",
        {"padding": 1, "padding_mode": "edge"},
        array("CHW"),
        "it works on 1 to 4 channels, but the array has 8",
    ),
    (
        "random_horizontal_flip",
        {},
        array("LC"),
        r"it works along the width, W, but the array has no such axis \(layout 'LC'\): leave "
        r"it out",
    ),
    ("random_vertical_flip", {}, array("L"), "it works along the height, H"),
    (
        "random_vertical_flip",
        {},
        array("TSCHW"),
        r"too many axes around HW \(layout TSCHW\)",
    ),
    (
        "normalize",
        {"mean": 0, "std": 1},
        array("CHW", "uint8"),
        "it needs floats, but gets uint8: write 'to_dtype",
    ),
    (
        "normalize",
        {"mean": [0, 1], "std": [1, 1]},
        array("CHW"),
        "mean has 2 numbers, but the image has 8 channels: write one, or 8",
    ),
    (
        "normalize",
        {"mean": [0, 1], "std": [1, 1]},
        array("HW"),
        "mean has 2 numbers, but the image has 1 channel",
    ),
    (
        "normalize",
        {"mean": 0.5, "std": 1},
        array("CHWP"),
        "mean would also be subtracted from the imaginary parts: write mean: 0",
    ),
    (
        "normalize",
        {"mean": 0, "std": 1},
        array("TSCHW"),
        r"too many axes \(layout TSCHW\)",
    ),
    (
        "resize",
        {"size": 4},
        array("CDHW"),
        r"it works on height and width, but the array's axes of space are D, H, W \(layout "
        r"'CDHW'\)",
    ),
    ("resize", {"size": 4}, array("C"), "it works on height and width, but the array has none"),
    (
        "resize",
        {"size": 4},
        array("CHW", "float64"),
        "numbers of dtype float64 cannot be resampled: write 'to_dtype: {dtype: float32}' "
        "before it",
    ),
    ("resize", {"size": 4}, array("CHWP"), "it works on real numbers, but these are complex"),
    (
        "random_resized_crop",
        {"size": 4},
        array("CHW", "int32"),
        "numbers of dtype int32 cannot be resampled",
    ),
    (
        "random_affine",
        {"degrees": 5},
        array("TCHW"),
        r"it works on images, but the array has further axes \(layout TCHW\)",
    ),
    (
        "random_rotation",
        {"degrees": 5},
        array("HW", "int16"),
        "it works on uint8 and floats, but gets int16: write 'to_dtype",
    ),
    (
        "grayscale",
        {},
        Spec.of_array("uint8", [2, 8, 8], "CHW"),
        r"it works on 1 or 3 channels, but gets \(2, 8, 8\) uint8",
    ),
    ("grayscale", {}, array("HW"), "it works on 1 or 3 channels"),
    ("decode", {}, array("CHW"), "the image is decoded already: remove this step"),
    (
        "to_dtype",
        {"dtype": "float32", "scale": True},
        array("L", "uint32"),
        "uint32 has no scale: set scale: false",
    ),
    ("to_dtype", {"dtype": "bool", "scale": True}, array("L", "uint8"), "bool has no scale"),
    (
        "to_dtype",
        {"dtype": "int32", "scale": True},
        array("L"),
        "float32 cannot hold the range of int32: set scale: false, or take a smaller dtype",
    ),
    (
        "to_dtype",
        {"dtype": "uint8", "scale": True},
        array("L", "float16"),
        "float16 is too coarse for the range of uint8: write",
    ),
    (
        "to_dtype",
        {"dtype": "float16", "scale": True},
        array("L", "uint16"),
        "float16 cannot hold the range of uint16: write",
    ),
]


@pytest.mark.parametrize(
    ("name", "parameters", "given", "message"),
    REFUSED,
    ids=[f"{r[0]}-{r[2].layout}-{n}" for n, r in enumerate(REFUSED)],
)
def test_what_makes_no_sense_is_refused(
    name: str, parameters: dict[str, Any], given: Spec, message: str
) -> None:
    with pytest.raises(StepIncompatibleError, match=message):
        on(given, name, **parameters)


def test_what_comes_out() -> None:
    assert on(array("CDHW"), "random_crop", size=[2, 3, 4]).shape == (8, 2, 3, 4)
    assert on(array("LC"), "center_crop", size=[5]).shape == (5, 8)
    padded = on(array("DHWC"), "pad", padding=[1, 2, 3, 4, 5, 6])
    assert (padded.shape, padded.at_least) == ((8 + 3 + 6, 8 + 2 + 5, 8 + 1 + 4, 8), (17, 15, 13))
    assert on(array("CL", size=None), "pad", padding=[1, 2]).at_least == (4,)
    assert on(array("TCHW"), "resize", size=4).shape == (8, 8, 4, 4)
    assert on(array("CHW", size=None), "resize", size=4).shape == (None, None, None)
    assert str(on(array("LC", "int16"), "to_dtype", dtype="float64")) == "(8, 8) float64"


def test_fitted_steps_are_the_same_steps() -> None:
    """What an image's steps become is what they were: the same fingerprint.

    And what workers get is the whole of it.
    """
    for name, parameters in (
        ("random_crop", {"size": 4, "padding": [1, 2]}),
        ("pad", {"padding": 3}),
        ("center_crop", {"size": [4]}),
    ):
        written = STEPS.find(name).model_validate(parameters)
        assert written.resolve(array("CHW")).model_dump(mode="json") == written.model_dump(
            mode="json"
        )
        volume = array("CDHW") if name != "random_crop" else array("CHW")
        fitted = pickle.loads(pickle.dumps(written.resolve(volume)))
        assert (fitted, fitted._space) == (written.resolve(volume), len(volume.space))


@pytest.mark.parametrize(
    "layout", ["CHW", "HWC", "HW", "LC", "L", "C", "", "CDHW", "TCHW", "HWTC", "CHWP", "ABEFG"]
)
def test_steps_get_other_axes_then_channels_then_space(layout: str) -> None:
    tensor = torch.arange(2 ** len(layout)).reshape([2] * len(layout))
    seen = to_steps(tensor, layout)
    assert seen.ndim == len(layout) + ("C" not in layout)
    back = from_steps(seen, layout)
    assert torch.equal(back, tensor)
    assert back.data_ptr() == tensor.data_ptr()
    if "H" in layout:
        assert torch.equal(from_steps(seen.flip(-2), layout), tensor.flip(layout.index("H")))


def test_default_layouts() -> None:
    assert [default_layout(n) for n in range(7)] == [
        "",
        "L",
        "HW",
        "CHW",
        "CDHW",
        "ABEFG",
        "ABEFGI",
    ]
    with pytest.raises(ValueError, match="layout is 'CHW', for 3 axes, but the arrays have 2"):
        Spec.of_array("uint8", (1, 2), "CHW")
