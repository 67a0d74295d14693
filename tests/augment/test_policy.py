import numpy as np
import pytest
import torch

from gpupipe.augment.policy import cut_chains, draw_depths, draw_weights, gamma_quantile


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.99, 1.0, 1.01, 2.5, 20.0, 100.0])
def test_quantiles_invert_the_distribution(alpha: float) -> None:
    """torch's regularised incomplete gamma function is the distribution."""
    u = np.linspace(0.001, 0.999, 999)
    x = torch.from_numpy(gamma_quantile(u, alpha))
    back = torch.special.gammainc(torch.tensor(alpha, dtype=torch.float64), x).numpy()
    np.testing.assert_allclose(back, u, atol=2e-5)


def test_the_quantiles_of_shape_one_are_those_of_the_exponential_distribution() -> None:
    u = np.linspace(0.0, 0.999, 1000)
    np.testing.assert_allclose(gamma_quantile(u, 1.0), -np.log1p(-u), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.05, 1.0, 100.0])
def test_weights_are_shares_at_any_draw(alpha: float) -> None:
    u = np.array([[0.0] * 5, [np.nextafter(1.0, 0.0)] * 5, [0.0, 0.5, 0.5, 0.0, 0.9]])
    weight = draw_weights(u, alpha, 3)
    assert weight.shape == (3, 4)
    assert (weight >= 0).all()
    np.testing.assert_allclose(weight.sum(1), 1)


def test_lengths_of_chains_are_equally_probable() -> None:
    depths = draw_depths(np.random.default_rng(0).random(30_000))
    assert np.abs(np.bincount(depths)[1:] - 10_000).max() < 450
    assert np.bincount(depths)[0] == 0


def test_chains_end_with_identity() -> None:
    op = np.full((1, 3, 3), 7, np.int32)
    assert cut_chains(op, np.array([[1, 2, 3]])).tolist() == [[[7, 0, 0], [7, 7, 0], [7, 7, 7]]]
