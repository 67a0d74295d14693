"""The slots of images that differ in size, one after the other or padded: what a stage writes."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.kernel_arguments import picture
from helpers.kernel_variants import extension
from helpers.kernel_variants import variant as variant  # noqa: PLC0414  # a fixture

SIZES = np.array([[3, 9], [5, 2], [1, 4]])
IMAGES = [picture(*size.tolist(), seed=n) for n, size in enumerate(SIZES)]


def deliver(values: NDArray[Any], *how: Any, sizes: NDArray[Any] = SIZES) -> list[int]:
    """Write the images to slots in these values; return the rows that are not done."""
    slots = values, sizes, 3, how[0]
    stage = extension.deliver_stage(None, (slots, None, None, *how[1:]))
    undone: list[int] = extension.run_program(stage, range(3), IMAGES)
    return undone


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_flat_slots_hold_one_image_after_the_other(variant: str, is_interleaved: bool) -> None:
    values = np.full(3 * 41, 77, np.uint8)
    assert deliver(values, is_interleaved) == []
    images = IMAGES if is_interleaved else [image.transpose(2, 0, 1) for image in IMAGES]
    assert np.array_equal(values, np.concatenate([image.ravel() for image in images]))


@pytest.mark.parametrize("sides", [(5, 9), (8, 16)])
def test_padded_slots_end_in_zeros(variant: str, sides: tuple[int, int]) -> None:
    padded = np.full((3, 3, *sides), 77, np.uint8)
    assert deliver(padded, False) == []
    expected = np.zeros_like(padded)
    for image, slot in zip(IMAGES, expected, strict=True):
        slot[:, : image.shape[0], : image.shape[1]] = image.transpose(2, 0, 1)
    assert np.array_equal(padded, expected)


def test_a_window_is_erased_in_the_image_and_not_in_the_padding() -> None:
    padded = np.full((3, 3, 5, 9), 77, np.uint8)
    windows = np.tile([[1, 1, 9, 9]], (3, 1))
    assert deliver(padded, False, windows, np.array([5, 6, 7], np.uint8)) == []
    assert (padded[0, :, 1:3, 1:] == np.array([5, 6, 7])[:, None, None]).all()
    assert not padded[0, :, 3:].any()
    assert (padded[1, 2, 1:5, 1] == 7).all()
    assert not padded[1, :, :, 2:].any()


@pytest.mark.parametrize("other", [(4, 2), (5, 3), (6, 2), (5, 1)])
def test_an_image_of_another_size_is_left_to_the_caller(other: tuple[int, int]) -> None:
    padded = np.full((3, 3, 6, 9), 77, np.uint8)
    assert deliver(padded, False, sizes=np.array([SIZES[0], other, SIZES[2]])) == [1]
    assert (padded[1] == 77).all()


@pytest.mark.parametrize(
    ("values", "sizes", "message"),
    [
        (np.zeros(122, np.uint8), SIZES, "beyond the target"),
        (np.zeros(124, np.uint8), SIZES, "not the values of all samples"),
        (np.zeros(246, np.uint8)[::2], SIZES, "not the values of all samples"),
        (np.zeros(123, np.complex128), SIZES, "1, 2, 4 or 8 bytes"),
        (np.zeros((3, 41), np.uint8), SIZES, "neither 1 nor 4 axes"),
        (np.zeros((2, 3, 5, 9), np.uint8), SIZES, "padded target is not"),
        (np.zeros((3, 3, 4, 9), np.uint8), SIZES, "beyond the padded target"),
        (np.zeros((3, 3, 5, 8), np.uint8), SIZES, "beyond the padded target"),
        (np.zeros((3, 3, 5, 10), np.uint8)[..., :9], SIZES, "padded target is not"),
        (np.zeros((3, 3, 5, 9), np.uint8)[:, ::-1], SIZES, "padded target is not"),
        (np.zeros((3, 5, 9, 3), np.uint8).transpose(0, 3, 1, 2), SIZES, "padded target is not"),
        (np.zeros(123, np.uint8), SIZES[:0], "has no samples"),
        (np.zeros(123, np.uint8), SIZES * 0, "empty or too large"),
        (np.zeros(123, np.uint8), SIZES.astype(np.int32), "sizes of the target is not"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_slots_that_do_not_fit_are_refused(values: Any, sizes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        deliver(values, False, sizes=sizes)


@pytest.mark.parametrize("channels", [0, 5, -1])
def test_flat_slots_have_one_to_four_channels(channels: int) -> None:
    slots = np.zeros(123, np.uint8), SIZES, channels, False
    with pytest.raises(ValueError, match="1 to 4 channels"):
        extension.deliver_stage(None, (slots, None, None))
