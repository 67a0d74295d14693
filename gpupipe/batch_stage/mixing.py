"""Functions that mix the samples of a batch: which with which, how, and how much.

Sample i is mixed with sample i - k, and the first k samples with the last k. k is the `shift`: 1,
as in torchvision, or more if neighbours are views of the same sample (`loader.repeats`). The share
of sample i is drawn from a symmetric beta distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def find_shift(ids: NDArray[np.int64]) -> int:
    """Return the length of the longest run of equal ids: this shift mixes no run with itself.

    Args:
        ids: The ids of the batch's samples, in their order, int64 (B,).

    Returns:
        The shift; 0, which mixes nothing, if the batch is shorter than two such runs.
    """
    ends = np.flatnonzero(np.diff(ids, append=-1, prepend=-1))
    longest = int(np.diff(ends).max(initial=1))
    return longest if len(ids) >= 2 * longest else 0


def count_pairs_of_one_sample(ids: NDArray[np.int64]) -> int:
    """Return how many samples of a batch are mixed with a view of themselves.

    Args:
        ids: The ids of the batch's samples, in their order, int64 (B,).
    """
    shift = find_shift(ids)
    return int((ids == np.roll(ids, shift)).sum()) if shift else 0


def mix_with_earlier(x: Tensor, share: float, shift: int) -> Tensor:
    """Mix each sample i with sample i - `shift`, with the weights `share` and 1 - `share`.

    That is `share * x + (1 - share) * x.roll(shift, 0)`, as torchvision's MixUp computes it with a
    shift of 1. It never makes the rolled batch, so the memory traffic is a third.

    Args:
        x: Floats (B, ...).
        share: The weight of each sample itself, 0 to 1.
        shift: 1 to B - 1; or 0, which returns `x` itself.
    """
    import torch

    if not shift:
        return x
    mixed = torch.empty_like(x)
    torch.lerp(x[-shift:], x[:shift], share, out=mixed[:shift])
    torch.lerp(x[:-shift], x[shift:], share, out=mixed[shift:])
    return mixed


def paste_from_earlier(x: Tensor, box: tuple[int, int, int, int], shift: int) -> Tensor:
    """Return a copy of `x` in which the box of sample i comes from sample i - `shift`.

    Args:
        x: (B, ..., H, W), of any dtype.
        box: (left, top, right, bottom) in pixels; right and bottom are exclusive.
        shift: 1 to B - 1; or 0, which returns `x` itself.
    """
    if not shift:
        return x
    left, top, right, bottom = box
    mixed = x.clone()
    mixed[:shift, ..., top:bottom, left:right] = x[-shift:, ..., top:bottom, left:right]
    mixed[shift:, ..., top:bottom, left:right] = x[:-shift, ..., top:bottom, left:right]
    return mixed


def symmetric_beta(u: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Turn uniform draws into draws from Beta(alpha, alpha).

    The transform is exact for every alpha > 0, and rejects no draws. If T has Student's
    distribution with 2 alpha degrees of freedom, then 1/2 + T / (2 sqrt(2 alpha + T²)) has the
    distribution Beta(alpha, alpha) (L. Devroye, "Random variate generation in one line of code",
    1996). T comes from two uniforms by the polar method: T = sqrt(2 alpha (U^(-1/alpha) - 1))
    cos(2 pi V) (R. W. Bailey, "Polar generation of random variates with the t-distribution",
    Mathematics of Computation 62, 1994).

    Args:
        u: float64 (N, 2) in [0, 1).
        alpha: Both parameters of the distribution, above 0.

    Returns:
        float64 (N,) in [0, 1].
    """
    exponent = np.log1p(-u[:, 0]) / alpha
    q, one_minus_q = np.exp(exponent), -np.expm1(exponent)
    cosine = np.cos(2.0 * np.pi * u[:, 1])
    # With T² / (2 alpha + T²) = (1 - q) cos² / (q + (1 - q) cos²), no power of U overflows.
    total = q + one_minus_q * cosine**2
    root = np.sqrt(one_minus_q * cosine**2 / total)
    smaller = q / (total * 2.0 * (1.0 + root))
    drawn: NDArray[np.float64] = np.where(cosine < 0, smaller, 1.0 - smaller)
    return drawn
