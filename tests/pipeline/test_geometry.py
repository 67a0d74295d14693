"""Formulas of geometry, held against torchvision's."""

import numpy as np
import pytest
from torchvision.transforms.functional import _get_perspective_coeffs

from gpupipe.pipeline.geometry import perspective_matrix


def rectangle(width: int, height: int) -> np.ndarray:
    x, y = width - 1.0, height - 1.0
    return np.array([[0.0, 0.0], [x, 0.0], [x, y], [0.0, y]])


@pytest.mark.parametrize(("width", "height"), [(500, 333), (64, 65), (9, 7), (4000, 3000)])
def test_the_matrix_holds_torchvisions_coefficients(width: int, height: int) -> None:
    """To float32, in which torchvision has them."""
    rng = np.random.default_rng(width)
    start = rectangle(width, height)
    reach = np.array([width, height]) * 0.3
    end = np.rint(start + rng.uniform(-1, 1, (200, 4, 2)) * reach)
    matrices = perspective_matrix(start, end)
    assert (matrices[:, 2, 2] == 1).all()
    for matrix, corners in zip(matrices, end, strict=True):
        expected = _get_perspective_coeffs(start.tolist(), corners.tolist())
        np.testing.assert_allclose(
            matrix.ravel()[:8], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max()
        )


def test_corners_go_where_they_should() -> None:
    start = rectangle(30, 20)
    end = np.array([[3.0, 2.0], [25.0, 1.0], [27.0, 15.0], [1.0, 18.0]])
    points = np.concatenate([end, np.ones((4, 1))], -1) @ perspective_matrix(start, end).T
    np.testing.assert_allclose(points[:, :2] / points[:, 2:], start, atol=1e-9)


def test_without_a_map_it_is_the_identity() -> None:
    start = rectangle(30, 20)
    on_a_line = np.array([[0.0, 0.0], [5.0, 5.0], [10.0, 10.0], [0.0, 19.0]])
    twice = np.array([[5.0, 5.0], [5.0, 5.0], [29.0, 19.0], [0.0, 19.0]])
    both = perspective_matrix(start, np.stack([on_a_line, start + np.array([1.0, 2.0]), twice]))
    assert (both[[0, 2]] == np.eye(3)).all()
    assert not (both[1] == np.eye(3)).all()
    assert (perspective_matrix(rectangle(1, 20), rectangle(1, 20)) == np.eye(3)).all()


def test_a_corner_that_comes_from_infinity_is_no_division_by_zero() -> None:
    """Where [0, 0] of the output lies on the horizon, no matrix ends with 1."""
    start = rectangle(11, 11)
    for end in (
        [[10.0, 0.0], [20.0, 0.0], [40.0, 30.0], [0.0, 10.0]],
        [[1.0, 1.0], [2.0, 1.0], [4.0, 4.0], [1.0, 2.0]],
    ):
        assert np.isfinite(perspective_matrix(start, np.array(end))).all()
