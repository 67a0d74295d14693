"""The maps that DALI's remap is fed with on a GPU, looked at on the CPU."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.engines.dali.operators.fields import make_displacements
from gpupipe.engines.dali.operators.remap import remap


def test_each_image_on_a_gpu_gets_maps_of_its_own_size() -> None:
    """And is padded, and cut again, to sizes that are fed, or constants if all are equal."""
    elastic, present = Elastic((9.0, 5.0), (1.0, 1.0)), np.array([True, True])
    (top, left), seeds = elastic.reach, np.array([3, 4])
    for sides in ([[30, 40], [50, 20]], [30, 40]):
        size = np.array(sides, np.float64)
        moves = make_displacements(size, present, seeds, elastic)
        _, arguments = remap(moves, size, (top, left), "bilinear", (0.0,))
        x, y, outer, inner = cast("tuple[Any, ...]", arguments)
        wider = np.array(sides) + 2 * np.array([top, left])
        assert np.array_equal(outer, wider)
        assert np.array_equal(inner, sides)
        assert isinstance(outer, list) == isinstance(inner, list) == (size.ndim == 1)
        for n, (of_x, of_y) in enumerate(zip(x.make(), y.make(), strict=True)):
            height, width = np.broadcast_to(sides, (2, 2))[n].tolist()
            assert of_x.shape == of_y.shape == tuple(np.broadcast_to(wider, (2, 2))[n])
            drawn = make_displacement(int(seeds[n]), (height, width), elastic)
            within = of_x[top:-top, left:-left] - left - np.arange(width)
            np.testing.assert_allclose(within, drawn[..., 0] * width / 2, atol=1e-5)
            within = of_y[top:-top, left:-left] - top - np.arange(height)[:, None]
            np.testing.assert_allclose(within, drawn[..., 1] * height / 2, atol=1e-5)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_the_maps_for_a_gpu_lead_to_torchvisions_pixels(interpolation: str) -> None:
    """Looked up in NumPy as DALI documents its operator: whole numbers are centres of pixels.

    Half-way over the image's edge, torchvision multiplies by the share that is inside twice.
    """
    rng = np.random.default_rng(0)
    image = rng.random((30, 40, 3)).astype(np.float32)
    alpha, fill = (30.0, 18.0), (0.3, 0.5, 0.7)
    size, elastic = np.array([30.0, 40.0]), Elastic(alpha, (1.0, 1.0))
    fields = make_displacements(size, np.array([True]), np.array([5]), elastic)
    moves = torch.from_numpy(np.stack(fields.make()))
    top, left = reach = (10, 16)
    _, arguments = remap(fields, size, reach, interpolation, fill)
    x, y = (maps.make()[0] for maps in cast("tuple[Any, ...]", arguments)[:2])
    padded = np.full((30 + 2 * top, 40 + 2 * left, 3), fill, np.float32)
    padded[top:-top, left:-left] = image
    inner = (slice(top, -top), slice(left, -left))
    x, y = x[inner], y[inner]
    assert x.min() >= 0
    assert x.max() <= padded.shape[1] - 1
    assert y.min() >= 0
    assert y.max() <= padded.shape[0] - 1
    if interpolation == "nearest":
        made = padded[np.rint(y).astype(int), np.rint(x).astype(int)]
    else:
        i, j = np.floor(y).astype(int), np.floor(x).astype(int)
        v, u = (y - i)[..., None], (x - j)[..., None]
        upper = padded[i, j] * (1 - u) + padded[i, j + 1] * u
        lower = padded[i + 1, j] * (1 - u) + padded[i + 1, j + 1] * u
        made = upper * (1 - v) + lower * v
    planes = torch.from_numpy(image).permute(2, 0, 1)
    mode = InterpolationMode(interpolation)
    expected = F.elastic(planes, moves, mode, list(fill)).permute(1, 2, 0).numpy()
    inside = F.elastic(torch.ones(1, 30, 40), moves, mode)[0].numpy()
    is_whole = (inside < 1e-6) | (inside > 1 - 1e-6)
    assert is_whole.mean() > 0.5
    differs = np.abs(made - expected).max(-1) > 1e-4
    assert differs[is_whole].mean() < 1e-3
    assert (expected == np.float32(fill)).all(-1).any(), "some pixels come from outside"
