"""The reference of random fields: numbers that never change, their distribution, and the blur."""

import hashlib

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import conv2d, pad

from gpupipe.augment.random_fields import blur, draw_normal, draw_uniform

Floats = NDArray[np.float32]


NORMAL, UNIFORM = "7efd07bc6470de1a", "060c831fd67e846c"


def digest(numbers: Floats) -> str:
    return hashlib.sha256(numbers.astype("<f4").tobytes()).hexdigest()[:16]


def test_the_numbers_of_a_seed_never_change() -> None:
    """States that were saved before resume with the same noise, on every machine."""
    assert draw_normal(2**53 - 1, 3).tolist() == pytest.approx(
        [-0.3263302, 0.88488126, -0.7379489], abs=1e-7
    )
    assert digest(draw_normal(2**53 - 1, 100_001)) == NORMAL
    assert digest(draw_uniform(12, 100_001)) == UNIFORM


@pytest.mark.parametrize("count", [0, 1, 255, 256, 511, 513, 40_000])
def test_a_shorter_field_is_the_beginning_of_a_longer_one(count: int) -> None:
    for draw in (draw_normal, draw_uniform):
        drawn = draw(9, count)
        assert (drawn.dtype, drawn.shape) == (np.float32, (count,))
        assert np.array_equal(drawn, draw(9, 50_000)[:count])


def test_normal_numbers_are_normally_distributed() -> None:
    """Moments, and the shares beyond 1 to 4 standard deviations, to 5 standard errors."""
    field = draw_normal(3, 2_000_000).astype(np.float64)
    error = field.size**-0.5
    assert abs(field.mean()) < 5 * error
    assert abs(field.var() - 1) < 5 * error * 2**0.5
    assert abs((field**3).mean()) < 5 * error * 15**0.5
    assert abs((field**4).mean() - 3) < 5 * error * 96**0.5
    for limit, share in ((1, 0.317311), (2, 0.045500), (3, 0.002700), (4, 6.334e-5)):
        assert abs((np.abs(field) > limit).mean() - share) < 5 * error * share**0.5
    assert np.abs(field).max() < 5.8


def test_uniform_numbers_fill_their_range_evenly() -> None:
    """Chi-square over 256 bins of the first and of the last 8 of the 24 bits, at 5 deviations."""
    field = draw_uniform(3, 2_000_000)
    assert field.min() >= 0
    assert field.max() < 1
    numbers = (field * 2.0**24).astype(np.int64)
    for bits in (numbers >> 16, numbers & 255):
        counts = np.bincount(bits, minlength=256)
        expected = len(field) / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * 510**0.5


@pytest.mark.parametrize("draw", [draw_normal, lambda *a: draw_uniform(*a) * 12**0.5 - 3**0.5])
def test_neighbours_and_seeds_have_nothing_in_common(draw: object) -> None:
    """Seeds that differ in one bit, too. Also numbers that share their two hashes, 256 apart."""
    assert callable(draw)
    first = draw(4, 1_000_000)
    pairs = [(first[gap:], first[:-gap]) for gap in (1, 2, 3, 256, 512, 1536)]
    pairs += [(first, draw(seed, 1_000_000)) for seed in (5, 6, 12, 4 + 2**40)]
    for a, b in pairs:
        assert abs(float((a * b).mean())) < 5 * a.size**-0.5
        squares = (a.astype(float) ** 2 - 1) * (b.astype(float) ** 2 - 1)
        assert abs(float(squares.mean())) < 5 * float(squares.std()) * a.size**-0.5


@pytest.mark.parametrize("half", [(0, 0), (1, 3), (4, 2)])
def test_a_blur_is_a_convolution_with_mirrored_borders(half: tuple[int, int]) -> None:
    field = draw_normal(1, 11 * 7).reshape(11, 7)
    across, down = (draw_uniform(n, h + 1) for n, h in enumerate(half))
    whole = [torch.from_numpy(np.r_[kernel[:0:-1], kernel]) for kernel in (across, down)]
    padded = pad(torch.from_numpy(field)[None, None], [half[0]] * 2 + [half[1]] * 2, "reflect")
    expected = conv2d(padded, whole[1][None, None, :, None] * whole[0][None, None, None])[0, 0]
    torch.testing.assert_close(torch.from_numpy(blur(field, across, down)), expected)
