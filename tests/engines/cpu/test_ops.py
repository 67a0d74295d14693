"""Operations, their names, the values of one sample, and the matrices of pixel indices."""

from __future__ import annotations

import numpy as np

from gpupipe.engines.cpu.ops import ColorMatrixOp, ColorOp, ToDtypeOp, in_indices
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
