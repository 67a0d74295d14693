"""The colours of gpupipe._kernels: torchvision's pixels, every variant to the bit, and refusals.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from gpupipe.augment import color_ops
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
from helpers.color_stages import NUMBERS, Change, change, create_stage, draw_changes, reference
from helpers.kernel_arguments import picture

extension = pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
SIZES = [(1, 1), (1, 9), (2, 2), (3, 3), (7, 40), (33, 17), (64, 65), (5, 1100)]
FACTORS = [0.0, 0.01, 0.37, 0.9, 1.0, 1.03, 1.7, 2.0, 3.3]
Image = NDArray[np.uint8]


@pytest.fixture(params=extension.variants())
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    extension.select(request.param)
    yield request.param
    extension.select(extension.variants()[0])


def shades(size: tuple[int, int], channels: int = 3) -> Image:
    """Shades with noise, all hues, one gray, and grays of many levels."""
    rng = np.random.default_rng(sum(size))
    rows, columns = np.mgrid[: size[0], : size[1]]
    planes = [rows * 255 / size[0], columns * 255 / size[1], (rows + columns) % 256]
    noisy = np.stack(planes[:channels], -1) + rng.normal(0, 20, (*size, channels))
    image = np.clip(noisy, 0, 255).astype(np.uint8)
    part = size[0] // 8
    image[:part] = 200
    image[part : 2 * part] = rng.integers(0, 256, (part, size[1], 1))
    return image


CASES: dict[str, list[Change]] = {
    **{
        name: [(name, factor) for factor in FACTORS]
        for name in (f"adjust_{n}" for n in ("brightness", "contrast", "saturation", "sharpness"))
    },
    "adjust_hue": [("adjust_hue", turn) for turn in (-0.5, -0.2, -0.03, 0.0, 0.1, 0.37, 0.5)],
    "posterize": [("posterize", bits) for bits in range(9)],
    "solarize": [("solarize", threshold) for threshold in (-3, 0, 127.5, 128, 255)],
    "solarize_add": [("solarize_add", levels) for levels in (0, 30, 128)],
    **{
        name: [(name, factor, shift) for factor in (-0.5, *FACTORS) for shift in (-0.3, 0.0, 0.7)]
        for name in ("scale_and_shift", "scale_and_shift_by_mean")
    },
    "gaussian_blur": [
        ("gaussian_blur", *size, *sigma)
        for size in ((5, 5), (23, 23), (5, 9), (1, 3), (7, 1), (13, 13))
        for sigma in ((0.1, 0.1), (0.5, 3.0), (2.0, 2.0))
    ],
    "permute_channels": [("permute_channels", *p) for p in itertools.permutations(range(3))],
    **{name: [(name,)] for name in ("invert", "autocontrast", "equalize", "gray", "to_gray")},
    "to_rgb": [("to_rgb",)],
}

DIFFERENCES = {"gaussian_blur": (1, 5e-4)}
"""By how many levels values may differ from torchvision's, and which share of them may differ.
All changes that are not named have its pixels to the bit.
"""


@pytest.mark.parametrize("name", CASES)
def test_how_far_from_torchvision_each_change_is(variant: str, name: str) -> None:
    most, share = DIFFERENCES.get(name, (0, 0.0))
    for size, channels, case in itertools.product([(64, 80), (24, 200)], (3, 1), CASES[name]):
        if name == "to_rgb" and channels == 3:
            continue
        image = shades(size, channels)
        made, expected = change(image, [case]), reference(image, [case])
        assert made.shape == expected.shape
        apart = np.abs(made.astype(int) - expected)
        assert apart.max() <= most and (apart > 0).mean() <= share, (size, channels, case)


def test_every_function_of_the_table_is_compared() -> None:
    tables = {name for name, row in COLOR_OPS.items() if row.formula}
    assert set(COLOR_OPS) - set(CASES) == tables | {"jpeg"}  # which the extension does elsewhere


FLOATS: list[Change] = [
    *((f"adjust_{name}", f) for name in ("brightness", "contrast", "saturation") for f in FACTORS),
    *CASES["adjust_hue"],
    *(("solarize", threshold) for threshold in (-0.1, 0.3, 1.0)),
    *(("scale_and_shift", factor, shift) for factor in (-0.5, 1.7) for shift in (-0.3, 0.7)),
    *(("adjust_gamma", power) for power in (0.0, 0.45, 1.0, 2.2)),
    *(("adjust_sharpness", factor) for factor in (0.0, 0.4, 2.5)),
    *(("gaussian_blur", *size, 1.3, 3.0) for size in ((1, 3), (5, 5), (23, 7), (13, 19))),
    *(("scale_and_shift_by_mean", 1.3, shift) for shift in (-0.2, 0.4)),
    ("permute_channels", 2, 0, 1),
    *((name,) for name in ("invert", "autocontrast", "gray", "to_gray")),
]


def test_every_function_of_floats_is_compared() -> None:
    names = {name for name, row in COLOR_OPS.items() if "float32" in row.dtypes}
    assert {name for name, *_ in FLOATS} - {"gray", "to_gray"} == names


def as_planes(image: Any) -> Any:
    return np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)


def test_floats_are_changed_as_torchvision_does(variant: str) -> None:
    """Within 1e-6 of the range, a hue within 2e-6: torch rounds elsewhere, and hues from 1 to 2."""
    orders = itertools.permutations(
        [("adjust_contrast", 0.8), ("adjust_saturation", 1.3), ("adjust_hue", 0.07)]
    )
    sequences = [*([case] for case in FLOATS), *map(list, orders), [("invert",), *FLOATS[-6:]]]
    for size, channels in itertools.product([(24, 80), (13, 1100)], (3, 1)):
        image: Any = shades(size, channels).astype(np.float32) / np.float32(255)
        planes = as_planes(image)
        for changes in sequences:
            made, expected = change(image, changes), reference(image, changes)
            most = 5e-6 if len(changes) > 1 else 2e-6 if changes[0][0] == "adjust_hue" else 1e-6
            assert np.abs(made - expected).max() < most, changes
            assert np.array_equal(change(planes, changes), made), changes
        assert np.array_equal(planes, shades(size, channels).astype(np.float32) / np.float32(255))


def test_floats_outside_of_0_to_1_are_changed_as_torchvision_does(variant: str) -> None:
    """A bicubic resize makes such values; a NaN marks what was not measured."""
    image: Any = np.array([[[1.5], [-1.0], [np.nan], [0.25]] * 9], np.float32)
    cases: list[Change] = [("invert",), ("adjust_brightness", 1.2), ("solarize", 0.3)]
    for case in [*cases, ("adjust_gamma", 2.0), ("adjust_gamma", 0.5), ("autocontrast",)]:
        made, expected = change(image, [case]), reference(image, [case])
        assert np.allclose(made, expected, atol=1e-6, equal_nan=True), case


def test_every_order_of_changes_has_torchvisions_pixels(variant: str) -> None:
    image = shades((64, 80))
    changes = [("brightness", 1.2), ("contrast", 0.8), ("saturation", 1.3), ("hue", 0.07)]
    for order in itertools.permutations([(f"adjust_{n}", v) for n, v in changes]):
        assert np.array_equal(change(image, order), reference(image, order)), order


def test_random_changes_have_torchvisions_pixels(variant: str) -> None:
    rng = np.random.default_rng(5)
    for n in range(60):
        image = picture(*SIZES[n % len(SIZES)], gap=5 * (n % 2), seed=n)
        changes = draw_changes(rng, 1 + n % 7)
        assert np.array_equal(change(image, changes), reference(image, changes)), changes


def test_all_variants_have_the_same_bits(variant: str) -> None:
    rng = np.random.default_rng(6)
    for size, n in itertools.product(SIZES, range(8)):
        image = picture(*size, gap=7 * (n % 2), seed=n)
        own = image[:, :, :1].copy() if n % 3 == 0 else image
        changes = draw_changes(rng, 1 + n, has_blur=min(size) > 6)
        extension.select("scalar")
        expected = change(own, changes)
        extension.select(variant)
        assert np.array_equal(change(own, changes), expected), (size, changes)


def test_the_luma_of_all_colours_is_torchvisions_but_for_three() -> None:
    green, blue = np.divmod(np.arange(1 << 16, dtype=np.uint32), 256)
    differing = []
    for red in range(256):
        colors = np.stack([np.full_like(green, red), green, blue], -1).astype(np.uint8)[None]
        made = change(colors, [("to_gray",)])
        apart = made.astype(int) - reference(colors, [("to_gray",)])
        differing += [colors[0, n].tolist() for n in np.flatnonzero(apart)]
    assert differing == [[250, 9, 228], [250, 13, 146], [250, 47, 199]]


def test_an_image_is_left_as_it_is() -> None:
    image = shades((20, 30))
    before = image.copy()
    image.flags.writeable = False
    for changes in (
        [("invert",)],
        [("adjust_hue", 0.1), ("invert",)],
        [("permute_channels", 2, 0, 1)],
    ):
        change(image, changes)
    assert np.array_equal(image, before)


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


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 3), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros(9, np.uint8),
    ],
    ids=["two channels", "a gamma of levels", "levels of floats", "a file"],
)
def test_what_is_no_image_of_its_dtype_is_not_done(image: Any) -> None:
    change = ("adjust_gamma", 2.0) if image.dtype == np.uint8 else ("posterize", 3)
    assert extension.run_program(create_stage([change]), [0], [image]) == [0]


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("adjust_hue", 0.6)], "a hue is not from -0.5 to 0.5"),
        ([("adjust_hue", np.nan)], "a hue is not"),
        ([("posterize", 9)], "the bits to keep are not from 0 to 8"),
        ([("solarize_add", 129)], "the levels to add are not from 0 to 128"),
        ([("permute_channels", 0, 1, 3)], "a channel is not from 0 to 2"),
        ([("gaussian_blur", 4, 3, 1, 1)], "the size of a blur is not odd"),
        ([("gaussian_blur", 3, 3, 1, 0)], "the sigma of a blur is not above 0"),
    ],
    ids=str,
)
def test_values_that_are_wrong_are_refused(changes: list[Change], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_stage(changes)


def test_each_sample_has_the_function_that_its_index_names() -> None:
    """With its own value, clipped and truncated, from any strides."""
    posterize, invert = (NUMBERS["posterize"], 0.0, 8.0, True), (NUMBERS["invert"], 0.0, 0.0, False)
    functions = (0, 0.0, 0.0, False), posterize, invert
    order = np.array([[1, 2, 0, 1], [0, 0, 1, 0]], np.int32).T
    values = np.array([[9.0, 9.0, 9.0, 3.9]] * 3)
    image = shades((6, 7))
    kept = image & 0b11100000
    for index, own, rows, expected in (
        (order[:, 0], (*values,), None, [image, 255 - image, image, kept]),
        (order[:, 1], (values[0, ::-1],), None, [image, image, image, image]),
        (order[:, 1], (values[0] - 6.0,), None, [image, image, kept, image]),
        (order[:, 0], (*values,), np.arange(4) % 2 == 0, [image, image, image, image]),
    ):
        stage = extension.color_stage(((functions, index, own, rows),), NO_TABLES)
        found = [np.asarray(extension.run_stage(stage, row, image)) for row in range(4)]
        assert all(map(np.array_equal, found, expected))


NO_TABLES = np.zeros((0, 256), np.uint8)
GAMMAS, TABLE = ((20, 0.0, 9.0, False),), ((1, 0.0, 0.0, False),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((GAMMAS, None, (np.ones(3), np.ones(2)), None), "differ in the number of rows"),
        ((GAMMAS, None, (np.ones(3),), np.ones(2, bool)), "differ in the number of rows"),
        ((GAMMAS, None, (np.ones((3, 3)), np.ones((3, 2))), None), "another number of values"),
        ((GAMMAS * 2, None, (np.ones(3),), None), "another number of values"),
        ((GAMMAS * 2, np.zeros(3, np.int32), (np.ones(3),) * 3, None), "another number of values"),
        ((GAMMAS, None, (np.ones(3, np.float32),), None), "no array of bool, int32"),
        ((GAMMAS, None, (np.ones((3, 1, 1)),), None), "no array of bool, int32"),
        ((GAMMAS * 2, np.array([0, 2]), (np.ones(2),), None), "the index names a function that is"),
        ((GAMMAS * 2, np.array([0, -1]), (np.ones(2),), None), "the index names a function"),
        ((TABLE, None, (np.array([0, 2]),), None), "table"),
        ((TABLE, None, (np.array([-1]),), None), "table"),
        ((((21, 0.0, 0.0, False),), None, (), None), "no such change"),
        ((((-1, 0.0, 0.0, False),), None, (), None), "no such change"),
        (((20,), None, (), None), "no tuple"),
        ([], "no tuple"),
    ],
    ids=str,
)
def test_changes_that_do_not_fit_are_refused(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extension.color_stage((change,), np.zeros((2, 256), np.uint8))


def test_tables_have_256_levels() -> None:
    with pytest.raises(ValueError, match="uint8"):
        extension.color_stage((), np.zeros((2, 255), np.uint8))
