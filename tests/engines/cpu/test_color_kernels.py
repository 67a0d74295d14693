"""The colours of gpupipe._kernels: torchvision's pixels, every variant to the bit, and refusals.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from gpupipe.augment.color_ops import COLOR_OPS
from helpers.color_stages import (
    NUMBERS,
    Change,
    as_planes,
    change,
    create_stage,
    draw_changes,
    reference,
    shades,
)
from helpers.kernel_arguments import picture
from helpers.kernel_variants import extension
from helpers.kernel_variants import variant as variant  # noqa: PLC0414  # a fixture

SIZES = [(1, 1), (1, 9), (2, 2), (3, 3), (7, 40), (33, 17), (64, 65), (5, 1100)]
FACTORS = [0.0, 0.01, 0.37, 0.9, 1.0, 1.03, 1.7, 2.0, 3.3]


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
        assert np.array_equal(change(as_planes(image), [case]), made), (size, channels, case)


def test_channels_change_in_memory_of_the_kernels(variant: str) -> None:
    """A sharpened image may be overwritten, but not by one of other channels."""
    sharpen, whole = ("adjust_sharpness", 2.0), shades((24, 90))
    for changes in (
        [sharpen, ("to_gray",)],
        [sharpen, ("to_gray",), ("to_rgb",)],
        [sharpen, ("to_gray",), sharpen, ("posterize", 3), ("to_rgb",), ("adjust_hue", 0.1)],
    ):
        for image in (whole, as_planes(whole), whole[:, 7:80], as_planes(whole)[:, 7:80]):
            assert np.array_equal(change(image, changes), reference(image, changes)), changes


@pytest.mark.parametrize("scale", [np.uint8(1), np.float32(1 / 255)], ids=["uint8", "float32"])
def test_a_channel_of_one_value_keeps_it(variant: str, scale: Any) -> None:
    image = shades((24, 30)) * scale
    image[..., 1] = image[3, 4, 1]
    for changes in ([("autocontrast",)], [("autocontrast",), ("adjust_brightness", 0.5)]):
        expected = reference(image, changes)
        np.testing.assert_allclose(change(image, changes), expected, atol=1e-6 * scale)


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
    tall, sharpen = np.nan_to_num(np.repeat(image, 5, 0)), [("adjust_sharpness", 2.0)]
    assert np.allclose(change(tall, sharpen), reference(tall, sharpen), atol=1e-6)


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


def test_the_luma_of_all_colours_is_torchvisions_but_for_three(variant: str) -> None:
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


def test_a_value_is_clipped_and_truncated() -> None:
    solarize, image = (NUMBERS["solarize"], 100.0, 200.0, True), shades((30, 40))
    change = (solarize,), np.zeros(3, np.int32), (np.array([-3.0, 127.9, 999.0]),), None
    stage = extension.color_stage((change,), NO_TABLES)
    for row, threshold in enumerate((100, 127, 200)):
        expected = np.where(image >= threshold, 255 - image, image)
        assert np.array_equal(np.asarray(extension.run_stage(stage, row, image)), expected)


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
        ((GAMMAS, None, (np.ones((3, 0)),), None), "no array of bool, int32"),
        ((GAMMAS, np.zeros(3, np.int32), (np.ones((3, 2)),), None), "another number of values"),
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
