"""Draws of the symmetric beta distribution, Beta(alpha, alpha), from uniform draws.

The transform is exact for every alpha > 0, and takes two uniforms per draw; nothing is rejected. If
T has Student's distribution with 2 alpha degrees of freedom, then 1/2 + T / (2 sqrt(2 alpha + T²))
has the distribution Beta(alpha, alpha) (L. Devroye, "Random variate generation in one line of
code", 1996). T comes from two uniforms by the polar method: T = sqrt(2 alpha (U^(-1/alpha) - 1))
cos(2 pi V) (R. W. Bailey, "Polar generation of random variates with the t-distribution",
Mathematics of Computation 62, 1994).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def symmetric_beta(u: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Turn uniforms into draws of Beta(alpha, alpha).

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
