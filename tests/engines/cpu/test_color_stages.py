"""Colours in programs: which become one stage, what the stage makes, and where it delivers.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from gpupipe.augment import color_ops
from gpupipe.augment.color_branches import ColorBranches
from gpupipe.augment.color_ops import COLOR_OPS, LUMA, ColorFunction, ColorValue
from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu import kernels
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.pixels import as_array
from gpupipe.engines.cpu.program import Program, Rules
from gpupipe.engines.cpu.stages import create_native
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import SampleIncompatibleError, Spec
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.steps.color_jitter import ColorJitter, RandomPhotometricDistort
from helpers.color_stages import Change, as_planes, change, create_stage, reference, shades
from helpers.kernel_variants import extension
from helpers.kernel_variants import variant as variant  # noqa: PLC0414  # a fixture

Image = NDArray[np.uint8]


def trace(count: int, channels: int = 3, size: tuple[int, int] = (20, 30)) -> Tracer:
    return Tracer([size] * count, find_rules(), Spec.of_image(channels))


def assert_one_kernel(program: Program, images: list[Image], step: Any, drawn: Any) -> None:
    """Assert that one kernel, and its stage, make of each image what the step's `torch` makes."""
    assert [kernel.name for kernel, _ in program.groups] == ["kernels.color"]
    stage = create_native(program.groups, ())
    for row, image in enumerate(images):
        p = {name: values[row] for name, values in drawn.items()}
        expected = step.torch(torch.from_numpy(image).permute(2, 0, 1), p).permute(1, 2, 0).numpy()
        assert np.array_equal(as_array(program.run(image, row)), expected), row
        assert np.array_equal(np.asarray(extension.run_stage(stage, row, image)), expected), row


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "step",
    [
        ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
        ColorJitter(contrast=0.4),
        RandomPhotometricDistort(),
    ],
    ids=["jitter", "contrast", "distort"],
)
def test_a_step_of_several_changes_is_one_kernel(step: Any, channels: int) -> None:
    images = [shades((20, 30), channels) for _ in range(24)]
    drawn = step.sample(np.random.default_rng(2).random((24, step.num_uniforms)))
    tracer = trace(24, channels)
    step.lower(tracer, drawn)
    assert_one_kernel(tracer.program(), images, step, drawn)


def test_changes_in_nested_switches_and_after_each_other_are_one_kernel() -> None:
    tracer = trace(3)
    inner = np.array([0, 0, 1])

    def run(part: Tracer) -> None:
        part.color("invert")
        part.switch(inner, [lambda other: None, lambda other: other.color("equalize")])

    tracer.switch(np.array([0, 1, 1]), [lambda part: part.color_matrix([LUMA] * 3), run])
    tracer.color("adjust_brightness", np.array([0.5, 0.6, 0.7]))
    tracer.color_matrix([LUMA])
    program = tracer.program()
    assert [kernel.name for kernel, _ in program.groups] == ["kernels.color"]
    image = shades((20, 30))
    expected: list[list[Change]] = [
        [("gray",), ("adjust_brightness", 0.5)],
        [("invert",), ("adjust_brightness", 0.6)],
        [("invert",), ("equalize",), ("adjust_brightness", 0.7)],
    ]
    for row, changes in enumerate(expected):
        made = as_array(program.run(image, row))
        assert np.array_equal(made, reference(image, [*changes, ("to_gray",)])), row


def test_a_jitter_of_some_samples_leaves_the_others_alone() -> None:
    tracer, image = trace(2), shades((20, 30))
    branches = ColorBranches(("posterize", "invert"), [np.full(2, 3.0)])
    tracer.switch(
        np.array([0, 1]),
        [lambda part: None, lambda part: part.switch(np.array([1, 1]), branches)],
    )
    program = tracer.program()
    assert [kernel.name for kernel, _ in program.groups] == ["kernels.color"]
    stage = create_native(program.groups, ())
    for row, expected in enumerate((image, 255 - image)):
        assert np.array_equal(np.asarray(extension.run_stage(stage, row, image)), expected)


def test_each_change_by_a_table_has_its_own() -> None:
    tracer, image = trace(3), shades((20, 30))
    first, second = np.array([0.5, 1.0, 2.0]), np.array([3.0, 0.4, 1.5])
    tracer.switch(
        np.array([1, 0, 1]),
        [lambda part: None, lambda part: part.color("adjust_gamma", first)],
    )
    tracer.color("adjust_gamma", second)
    stage = create_native(tracer.program().groups, ())
    for row, chosen in enumerate(([first, second], [second], [first, second])):
        changes = [("adjust_gamma", gammas[row]) for gammas in chosen]
        made = np.asarray(extension.run_stage(stage, row, image))
        assert np.array_equal(made, reference(image, changes)), row


def test_a_function_without_values_alone_is_one_for_all_samples() -> None:
    tracer = trace(3)
    tracer.color("invert")
    stage = create_native(tracer.program().groups, ())
    image = shades((20, 30))
    assert np.array_equal(np.asarray(extension.run_stage(stage, 2, image)), 255 - image)


def fade(part: Tracer) -> None:
    part.color("adjust_brightness", np.array([0.5, 0.6]))


def flip(part: Tracer) -> None:
    part.flip(np.array([1, 0]), np.array([0, 1]))


def crop(part: Tracer) -> None:
    part.crop((3, 4), (12, 15))


def resize(part: Tracer) -> None:
    part.resize((11, 13), "bilinear", True)


def run_both(*steps: Callable[[Tracer], None]) -> Callable[[Tracer], None]:
    def run(part: Tracer) -> None:
        for step in steps:
            step(part)

    return run


def in_branch(part: Tracer) -> None:
    part.switch(np.array([0, 1]), [crop, run_both(fade, crop)])


def at_end_of_branch(part: Tracer) -> None:
    part.switch(np.array([0, 1]), [flip, run_both(flip, fade)])


def blend(part: Tracer) -> None:
    part.blend([lambda branch: None, fade], np.array([[0.5, 0.5], [0.25, 0.75]]))


@pytest.mark.parametrize(
    "steps",
    [
        (fade,),
        (fade, flip),
        (fade, crop),
        (fade, resize),
        (fade, flip, fade, crop, fade),
        (in_branch,),
        (at_end_of_branch,),
        (at_end_of_branch, resize),
        (blend,),
    ],
    ids=lambda steps: "-".join(step.__name__ for step in steps),
)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("is_float", [False, True])
def test_a_table_that_is_left_to_later_stages_is_looked_up(
    variant: str, steps: Any, channels_last: bool, is_float: bool
) -> None:
    """A brightness is a table, which the last stage of a program looks up."""
    images = [shades((20, 30)), shades((20, 30))[::-1].copy()]
    rules = Rules(kernels.RULES)
    results = []
    planes = [as_planes(image) for image in images]
    for own_rules, own in ((find_rules(), images), (find_rules(), planes), (rules, images)):
        buffer = OutputBuffer(2, DeliveryFormat(None, None, channels_last), BatchMemory(1))
        tracer = Tracer([(20, 30)] * 2, own_rules, Spec.of_image(3))
        for step in steps:
            step(tracer)
        if is_float:
            tracer.to_dtype("float32", True)
        tracer.begin_step("", Spec.of_image(3, dtype="float32" if is_float else "uint8"))
        program = tracer.program(buffer)
        if own_rules is rules:
            for row, image in enumerate(own):
                program.run(image, row)
        else:
            stage = create_native(program.groups, ())
            assert extension.run_program(stage, [0, 1], own) == []
        results.append(buffer.take([0, 1]))
    assert all(torch.equal(result, results[-1]) for result in results)


def test_other_changes_end_a_series() -> None:
    tracer = trace(2)
    tracer.color("invert")
    tracer.switch(np.array([0, 1]), [lambda part: None, lambda part: part.crop((0, 0), (9, 9))])
    tracer.color("invert")
    names = [kernel.name for kernel, _ in tracer.program().groups]
    assert names == ["kernels.color", "crop", "kernels.color"]


@pytest.mark.parametrize("has_reference", [False, True])
def test_a_function_of_another_package_is_a_table(
    monkeypatch: pytest.MonkeyPatch, has_reference: bool
) -> None:
    monkeypatch.setattr(color_ops, "COLOR_OPS", COLOR_OPS)
    share = ColorValue("share", "float64", 0.0, 1.0)
    fade = ColorFunction(
        (share,),
        is_pointwise=True,
        formula=lambda pixels, part: pixels * (1.0 - part) + part,
        reference=(lambda image, part: F.invert(image)) if has_reference else None,
    )
    monkeypatch.setitem(COLOR_OPS, "fade", fade)
    tracer = trace(3)
    shares = np.array([0.0, 0.5, 1.0])
    tracer.switch(np.array([1, 0, 1]), [lambda part: None, lambda part: part.color("fade", shares)])
    program, image = tracer.program(), shades((20, 30))
    assert [kernel.name for kernel, _ in program.groups] == ["kernels.color"]
    assert program.needs_torchvision() == has_reference
    kept, white = as_array(program.run(image, 1)), as_array(program.run(image, 2))
    assert np.array_equal(kept, image)
    assert np.array_equal(white, 255 - image if has_reference else np.full_like(image, 255))


def test_a_blur_of_an_image_that_is_too_small_is_refused() -> None:
    tracer = trace(2, size=(11, 20))
    blur = np.array([[5, 23], [5, 23]]), np.ones((2, 2))
    tracer.switch(
        np.array([0, 1]), [lambda part: None, lambda part: part.color("gaussian_blur", *blur)]
    )
    program, image = tracer.program(), shades((11, 20))
    assert np.array_equal(as_array(program.run(image, 0)), image)
    with pytest.raises(SampleIncompatibleError, match="gaussian_blur needs at least 12x3 pixels"):
        program.run(image, 1)
    stage = create_native(program.groups, ())
    assert extension.run_program(stage, [0, 1], [image, image]) == [1]


@pytest.mark.parametrize("is_planar", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_changes_of_floats_are_made_at_the_delivery(
    variant: str, is_planar: bool, channels_last: bool
) -> None:
    image: Any = shades((20, 606)) / np.float32(255)
    images = [image[:, :603], image[::-1, :603].copy(), image[:, 3:].copy()]
    results = []
    for rules in (find_rules(), Rules(kernels.RULES)):
        buffer = OutputBuffer(3, DeliveryFormat(None, None, channels_last), BatchMemory(1))
        tracer = Tracer([(20, 603)] * 3, rules, Spec.of_image(3, dtype="float32"))
        tracer.color("autocontrast")
        tracer.color("adjust_hue", np.array([0.1, -0.3, 0.2]))
        tracer.flip(np.array([1, 0, 0]), np.array([0, 1, 0]))
        tracer.normalize((0.1, 0.2, 0.3), (0.5, 0.4, 0.3))
        tracer.begin_step("", Spec.of_image(3, dtype="float32"))
        program = tracer.program(buffer)
        if results:
            for row, image in enumerate(images):
                program.run(image, row)
        else:
            assert next(kernel.name for kernel, _ in program.groups) == "kernels.color"
            own = [as_planes(image) for image in images] if is_planar else images
            assert extension.run_program(create_native(program.groups, ()), range(3), own) == []
        results.append(buffer.take(range(3)))
    assert torch.allclose(*results, rtol=0, atol=1e-5)  # a standard deviation of 0.3 divides


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [
        [("solarize", 0.5)],
        [("adjust_brightness", 0.7), ("invert",), ("adjust_gamma", 0.8)],
        [("autocontrast",)],
        [("adjust_saturation", 1.4), ("adjust_hue", 0.2)],
        [],
    ],
    ids=str,
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_changes_of_floats_are_the_same_from_and_to_each_layout(
    variant: str, channels: int, changes: Any, is_reversed: bool
) -> None:
    """To the bit, also where rows have gaps, and where slots begin inside a line of the cache."""
    ranges = np.array([0.9, 0.5, 0.7], np.float32)[:channels]  # each channel has its own
    whole: Any = shades((21, 130), channels) / np.float32(255) * ranges
    factors = np.array([[1, 1, 1], [0.1, 0.2, 0.3], [0.5, 0.4, 0.3]], np.float32)
    factors = factors[:, :channels].copy()
    flips = np.array([[0, is_reversed]], np.uint8)
    results = []
    for width in (130, 127):
        packed = np.ascontiguousarray(whole[:, :width])
        sources = [packed, as_planes(packed), whole[:, :width], as_planes(whole)[:, :width]]
        for image, is_interleaved, offset in product(sources, (False, True), (0, 3)):
            memory = np.zeros(offset + packed.size, np.float32)
            slot = memory[offset:].reshape(1, channels, 21, width)
            if is_interleaved:
                slot = memory[offset:].reshape(1, 21, width, channels).transpose(0, 3, 1, 2)
            deliver = extension.deliver_stage(flips, (slot, None, factors))
            stage = extension.program((create_stage(changes), deliver))
            assert extension.run_program(stage, [0], [image]) == []
            results.append(slot[0].copy())
        assert all(np.array_equal(result, results[0]) for result in results)
        by_hand = change(packed, changes)[:: -1 if is_reversed else 1]
        expected = (by_hand - factors[1]) / factors[2]
        assert np.array_equal(results[0].transpose(1, 2, 0), expected)
        results.clear()
