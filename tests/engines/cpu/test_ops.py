"""Operations, their names and the values of one sample; and the two forms of an image."""

from __future__ import annotations

import numpy as np
import torch

from gpupipe.engines.cpu.ops import (
    ColorMatrixOp,
    ColorOp,
    ToDtypeOp,
    as_array,
    as_packed,
    as_tensor,
    in_indices,
    with_channels,
)
from gpupipe.pipeline.step import Spec

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def test_an_operation_has_the_name_of_its_primitive() -> None:
    assert ToDtypeOp("", Spec(), "float32", True).primitive == "to_dtype"
    assert ColorMatrixOp("", Spec(), np.zeros((1, 3, 3))).primitive == "color_matrix"
    assert ColorOp("", Spec(), "invert", []).primitive == "color"


def test_the_values_of_a_sample_are_numbers_of_python() -> None:
    """Kernels of torch refuse those of NumPy."""
    values = [np.array([[3, 5], [7, 9]], np.int32), np.array([0.5, 0.25])]
    found = ColorOp("", Spec(), "gaussian_blur", values).values_of(1)
    assert found == [[7, 9], 0.25]
    assert type(found[1]) is float


def test_a_tensor_and_an_array_share_their_memory() -> None:
    pixels = PIXELS.copy()
    tensor = as_tensor(pixels)
    assert tuple(tensor.shape) == (3, 4, 5)
    assert np.array_equal(as_array(tensor), pixels)
    tensor[1, 2, 3] = 99
    assert pixels[2, 3, 1] == as_array(tensor)[2, 3, 1] == 99
    assert as_tensor(tensor) is tensor
    assert as_array(pixels) is pixels


def test_packed_pixels_have_no_gaps_and_are_copied_only_if_they_had() -> None:
    assert as_packed(PIXELS) is PIXELS
    for given in (PIXELS[:, 1:4], PIXELS[::2], torch.from_numpy(PIXELS.transpose(2, 0, 1).copy())):
        packed = as_packed(given)
        assert packed.flags.c_contiguous
        assert np.array_equal(packed, as_array(given))
        assert not np.shares_memory(packed, PIXELS)
    floats = PIXELS.astype(np.float32)[:, ::2]
    assert np.array_equal(as_packed(floats), floats)


def test_a_map_of_points_is_the_map_of_indices_half_a_pixel_further() -> None:
    rng = np.random.default_rng(0)
    for rows in (2, 3):
        maps = rng.normal(size=(4, rows, 3))
        made = in_indices(maps)
        for index in ((0, 0), (3, 7)):
            point = np.array([index[0] + 0.5, index[1] + 0.5, 1.0])
            expected = maps @ point
            found = made @ np.array([*index, 1.0])
            divisor = expected[:, 2:] if rows == 3 else 1.0
            own = found[:, 2:] if rows == 3 else 1.0
            assert np.allclose(found[:, :2] / own, expected[:, :2] / divisor - 0.5)


def test_the_axis_of_one_channel_comes_back() -> None:
    assert with_channels(PIXELS[:, :, 0]).shape == (4, 5, 1)
    assert with_channels(PIXELS) is PIXELS
