"""Operations, their names, the values of one sample, and the matrices of pixel indices."""

import numpy as np

from gpupipe.engines.cpu.ops import (
    ColorMatrixOp,
    ColorOp,
    ToDtypeOp,
    find_warp_matrices,
    in_indices,
)
from gpupipe.pipeline.geometry import affine_matrix
from gpupipe.pipeline.step import Spec


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


def test_a_matrix_for_each_sample_is_made_to_the_bit() -> None:
    """The extension makes them for arguments with a row for each sample."""
    rng = np.random.default_rng(0)
    linear, (source, output) = rng.normal(size=(90, 2, 2)), rng.uniform(0, 500, (2, 90, 2))
    for part in (linear, linear[0], linear.swapaxes(1, 2)):
        found = find_warp_matrices(90, part, source, output)
        assert np.array_equal(found, in_indices(affine_matrix(part, source, output)))
    assert find_warp_matrices(2, linear[0], source[0], output[0]).shape == (2, 2, 3)
