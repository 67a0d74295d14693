"""Displacements: torchvision's given the same draws, spread as its own, and of enough pixels."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import ElasticTransform as Torchvision

from gpupipe.augment import noise
from gpupipe.augment.elastic import Elastic, kernel_size, make_displacement


@pytest.mark.parametrize("sigma", [(5.0, 5.0), (2.0, 3.5), (0.1, 0.1), (0.0, 0.0)])
@pytest.mark.parametrize("alpha", [(50.0, 50.0), (0.0, 120.0)])
def test_given_the_same_draws_displacements_are_torchvisions(
    alpha: tuple[float, float], sigma: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    drawn = torch.stack([torch.rand(1, 1, 40, 56)[0, 0] for _ in range(2)])
    monkeypatch.setattr(noise, "uniform_field", lambda seed, shape: drawn.numpy())
    monkeypatch.setattr(noise, "find_kernels", lambda: None)
    torch.manual_seed(0)
    expected = Torchvision(list(alpha), list(sigma)).make_params([torch.zeros(3, 40, 56)])
    made = make_displacement(1, (40, 56), Elastic(alpha, sigma))[None]
    torch.testing.assert_close(torch.from_numpy(made), expected["displacement"], rtol=0, atol=1e-6)


def test_displacements_are_spread_as_torchvisions() -> None:
    """The mean square of each part over 300 fields, to 5 standard errors."""
    torch.manual_seed(0)
    transform, image = Torchvision([50.0, 20.0], [2.0, 2.0]), torch.zeros(3, 32, 40)
    theirs = torch.cat([transform.make_params([image])["displacement"] for _ in range(300)])
    elastic = Elastic((50.0, 20.0), (2.0, 2.0))
    ours = torch.from_numpy(np.stack([make_displacement(n, (32, 40), elastic) for n in range(300)]))
    for axis in range(2):
        a, b = (field[..., axis].square().mean((1, 2)) for field in (ours, theirs))
        error = ((a.var() + b.var()) / 300).sqrt()
        assert abs(float(a.mean() - b.mean())) < 5 * float(error)
        assert abs(float(ours[..., axis].mean())) < 5 * float(ours[..., axis].std()) / 300**0.5
    assert not torch.equal(ours[0], ours[1])


@pytest.mark.parametrize("sigma", [0.1, 0.5, 0.9, 1, 2.3, 5, 20])
def test_the_kernel_has_torchvisions_size(sigma: float) -> None:
    side = int(8 * sigma + 1)
    assert kernel_size(sigma) == side + (side % 2 == 0)


@pytest.mark.parametrize("sigma", [(5.0, 5.0), (2.0, 3.5), (0.0, 0.0)])
def test_displacements_are_the_same_with_and_without_the_extension(
    sigma: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic = Elastic((50.0, 20.0), sigma)
    made = make_displacement(8, (41, 67), elastic)
    monkeypatch.setattr(noise, "find_kernels", lambda: None)
    assert np.array_equal(made, make_displacement(8, (41, 67), elastic))


def test_an_image_must_be_larger_than_half_the_blur() -> None:
    elastic = Elastic((9.0, 9.0), (1.0, 5.0))
    assert elastic.explain_small(np.array([21.0, 99.0])) == ""
    message = elastic.explain_small(np.array([99.0, 20.0]))
    assert message.startswith("the blur needs at least 21x21 pixels, but the image has 99x20")
