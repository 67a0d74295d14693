"""Successive crops become one, and colours are changed only where a crop needs them."""

from typing import Any

import numpy as np
import pytest

from gpupipe.augment.color_branches import ColorBranches
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.ops import (
    ChooseColorOp,
    ColorOp,
    CropOp,
    DecodeOp,
    FlipOp,
    NormalizeOp,
    ToDtypeOp,
)
from gpupipe.engines.cpu.pixels import as_array
from gpupipe.engines.cpu.program import SwitchOp
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.engines.cpu.windows import limit_windows, merge_ops
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.installation import find_extension

SPEC, SPEC_OF_FLOATS = Spec.of_image(3), Spec.of_image(3, dtype="float32")
SIZE = np.array([[40.0, 60.0]])
FILL = (7.0, 8.0, 9.0)


@pytest.fixture
def image() -> Any:
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)


def trace(*crops: tuple[list[int], list[int], Any]) -> Tracer:
    tracer = Tracer(SIZE, find_rules(), SPEC)
    for number, (anchor, shape, fill) in enumerate(crops):
        tracer.begin_step(f"crop{number}", SPEC)
        tracer.crop(anchor, shape, fill)
    return tracer


@pytest.mark.parametrize("inner", [[0, 0], [15, 10], [100, 90]], ids=str)
def test_the_canvas_of_a_zoom_out_is_not_made(inner: list[int], image: Any) -> None:
    tracer = trace(([-20, -30], [120, 150], FILL), (inner, [20, 60], None))
    (crop,) = merge_ops(tracer.ops)
    assert isinstance(crop, CropOp)
    assert crop.windows.tolist() == [[inner[0] - 20, inner[1] - 30, 20, 60]]
    assert crop.steps == ("crop0", "crop1")
    canvas = np.empty((120, 150, 3), np.uint8)
    canvas[:] = FILL
    canvas[20:60, 30:90] = image
    expected = canvas[inner[0] : inner[0] + 20, inner[1] : inner[1] + 60]
    assert (as_array(tracer.program().run(image, 0)) == expected).all()


def test_three_crops_are_one_that_names_all(image: Any) -> None:
    tracer = trace(
        ([-20, -30], [120, 150], FILL), ([15, 40], [60, 70], None), ([9, 3], [10, 20], None)
    )
    (crop,) = merge_ops(tracer.ops)
    assert isinstance(crop, CropOp)
    assert crop.windows.tolist() == [[4, 13, 10, 20]]
    assert crop.steps == ("crop0", "crop1", "crop2")
    assert (as_array(tracer.program().run(image, 0)) == image[4:14, 13:33]).all()


def test_a_crop_that_leaves_a_canvas_of_another_fill_stays(image: Any) -> None:
    tracer = trace(([-2, -3], [44, 66], FILL), ([-5, 0], [20, 20], (0.0,)))
    assert len(merge_ops(tracer.ops)) == 2
    found = as_array(tracer.program().run(image, 0))
    assert (found[:5] == 0).all()
    assert (found[5:7] == FILL).all()


def test_a_pad_does_not_show_what_a_crop_cut_away(image: Any) -> None:
    tracer = trace(([10, 20], [8, 9], FILL), ([-2, -2], [12, 13], FILL))
    found = as_array(tracer.program().run(image, 0))
    assert (found[2:10, 2:11] == image[10:18, 20:29]).all()
    assert (found[:2] == FILL).all()
    assert (found[:, 11:] == FILL).all()


def test_a_crop_without_fill_is_not_joined() -> None:
    """Its kernel raises the error of a window that is outside."""
    tracer = trace(([0, 0], [50, 50], None), ([0, 0], [20, 20], None))
    assert len(merge_ops(tracer.ops)) == 2


@pytest.mark.skipif(find_extension("_jpeg") is None, reason="the extension is not built, or is off")
@pytest.mark.parametrize(
    ("anchor", "window"),
    [
        ([-5, 50], [0, 50, 15, 10]),
        ([30, -3], [30, 0, 10, 17]),
        ([5, 60], [0, 0, 40, 60]),
        ([40, 5], [0, 0, 40, 60]),
        ([-20, -20], [0, 0, 40, 60]),
    ],
    ids=str,
)
def test_the_part_of_a_window_in_the_image_is_decoded(anchor: Any, window: list[int]) -> None:
    """The whole image, where a window shows nothing of it."""
    tracer = Tracer(SIZE, find_rules(), SPEC)
    tracer.decode("rgb", False)
    tracer.crop(anchor, [20, 20], FILL)
    decode = limit_windows(tracer.ops, tracer._decoded_size)[0]
    assert isinstance(decode, DecodeOp)
    assert decode.windows is not None
    assert decode.windows.tolist() == [window]


def test_two_flips_are_one(image: Any) -> None:
    """A kernel that flips writes them straight into the batch."""
    tracer = Tracer(np.repeat(SIZE, 4, 0), find_rules(), SPEC)
    for step, flags in (("horizontal", [0, 1, 0, 1]), ("vertical", [0, 0, 1, 1])):
        tracer.begin_step(step, SPEC)
        tracer.flip(**{step: np.array(flags)})
    tracer.flip(horizontal=np.array([0, 0, 0, 1]))
    (flip,) = merge_ops(tracer.ops)
    assert isinstance(flip, FlipOp)
    assert flip.flags.tolist() == [[0, 0], [1, 0], [0, 1], [0, 1]]
    assert flip.steps == ("horizontal", "vertical", "vertical")
    program = tracer.program()
    for row, expected in enumerate([image, image[:, ::-1], image[::-1], image[::-1]]):
        assert (as_array(program.run(image, row)) == expected).all()


def test_flips_on_both_sides_of_the_decoded_cache_are_two() -> None:
    tracer = Tracer(SIZE, find_rules(), SPEC)
    for number in range(4):
        tracer.flip(horizontal=np.array([1]))
        if number == 1:
            tracer.end_prefix()
    assert [type(op) for op in tracer.program().ops] == [FlipOp, FlipOp]


def test_a_crop_of_some_samples_is_a_crop_of_all() -> None:
    tracer = Tracer(np.repeat(SIZE, 2, 0), find_rules(), SPEC)
    none: Any = lambda part: None  # noqa: E731
    tracer.switch([0, 1], [none, lambda part: part.crop([-1, -2], [50, 70], FILL)])
    (crop,) = tracer.ops
    assert isinstance(crop, CropOp)
    assert crop.windows.tolist() == [[0, 0, 40, 60], [-1, -2, 50, 70]]
    assert tracer.size.tolist() == [[40, 60], [50, 70]]


@pytest.mark.skipif(find_extension("_jpeg") is None, reason="the extension is not built, or is off")
@pytest.mark.parametrize(("name", "is_whole"), [("adjust_hue", False), ("adjust_contrast", True)])
@pytest.mark.parametrize("kind", ["of all", "of a branch", "of a policy"])
def test_colours_are_changed_where_a_crop_needs_them(name: str, is_whole: bool, kind: str) -> None:
    tracer = Tracer(np.repeat(SIZE, 2, 0), find_rules(), SPEC)
    tracer.decode("rgb", False)
    value = np.full(2, 0.1)
    if kind == "of all":
        tracer.color(name, value)
    elif kind == "of a branch":
        none: Any = lambda part: None  # noqa: E731
        tracer.switch([0, 1], [none, lambda part: part.color(name, value)])
    else:
        tracer.switch([0, 1], ColorBranches(("", name), [value]))
    tracer.crop([[-5, 10], [3, 4]], [[20, 20], [30, 40]], FILL)
    decode, before, color, crop = limit_windows(tracer.ops, tracer._decoded_size)
    assert isinstance(decode, DecodeOp)
    assert isinstance(before, CropOp)
    assert isinstance(color, ColorOp | SwitchOp | ChooseColorOp)
    assert isinstance(crop, CropOp)
    needed, whole = [[0, 10, 15, 20], [3, 4, 30, 40]], [0, 0, 40, 60]
    expected = [
        whole if is_whole and kind == "of all" else needed[0],
        whole if is_whole else needed[1],
    ]
    assert before.windows.tolist() == expected
    shifted = crop.windows + np.pad(before.windows[:, :2], ((0, 0), (0, 2)))
    assert shifted.tolist() == [[-5, 10, 20, 20], [3, 4, 30, 40]]


def run_one_by_one(tracer: Tracer, image: Any) -> Any:
    """Run the operations of a tracer on an image, none merged with another."""
    for op in tracer.ops:
        kernel, _ = find_rules().find([op])  # type: ignore[misc]
        image = kernel.run(image, 0)
    return image


def test_crops_and_flips_come_before_conversions(image: Any) -> None:
    """So that kernels convert in the delivery, and nothing is converted that a crop cuts away."""
    tracer = Tracer(SIZE, find_rules(), SPEC)
    tracer.flip(horizontal=np.array([1]))
    tracer.to_dtype("float32", True)
    tracer.begin_step("normalize", SPEC_OF_FLOATS)
    tracer.normalize((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    tracer.crop([5, 6], [20, 30])
    tracer.flip(horizontal=np.array([1]), vertical=np.array([1]))
    expected = run_one_by_one(tracer, image)
    made = tracer.program()
    assert [type(op) for op in made.ops] == [FlipOp, CropOp, FlipOp, ToDtypeOp, NormalizeOp]
    assert [op.spec.dtype for op in made.ops] == ["uint8"] * 4 + ["float32"]
    assert np.array_equal(as_array(made.run(image, 0)), as_array(expected))


def test_a_crop_with_a_fill_stays_behind_a_conversion() -> None:
    """Its fill is a value after the conversion."""
    tracer = Tracer(SIZE, find_rules(), SPEC)
    tracer.to_dtype("float32", True)
    tracer.crop([-5, 6], [20, 30], FILL)
    tracer.flip(horizontal=np.array([1]))
    assert [type(op) for op in merge_ops(tracer.ops)] == [ToDtypeOp, CropOp, FlipOp]


def test_crops_and_flips_on_both_sides_of_a_conversion_are_one(image: Any) -> None:
    tracer = Tracer(SIZE, find_rules(), SPEC)
    tracer.crop([-5, 6], [60, 50], FILL)
    tracer.to_dtype("float32", True)
    tracer.begin_step("crop", SPEC_OF_FLOATS)
    tracer.crop([3, 2], [30, 20])
    tracer.flip(horizontal=np.array([1]))
    tracer.normalize((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    tracer.flip(horizontal=np.array([1]), vertical=np.array([1]))
    expected = run_one_by_one(tracer, image)
    made = tracer.program()
    crop, flip, *_ = made.ops
    assert [type(op) for op in made.ops] == [CropOp, FlipOp, ToDtypeOp, NormalizeOp]
    assert isinstance(crop, CropOp)
    assert crop.windows.tolist() == [[-2, 8, 30, 20]]
    assert isinstance(flip, FlipOp)
    assert flip.flags.tolist() == [[0, 1]]
    assert np.array_equal(as_array(made.run(image, 0)), as_array(expected))
