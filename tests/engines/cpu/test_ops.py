"""Operations: their names, and the values of one sample."""

from __future__ import annotations

import numpy as np

from gpupipe.engines.cpu.ops import ColorMatrixOp, ColorOp, ToDtypeOp
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
