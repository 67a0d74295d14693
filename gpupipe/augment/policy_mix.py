"""AugMix: chains of operations, blended with each other and with the image.

Source: https://arxiv.org/abs/1912.02781. The weights come from gamma distributions, whose draws
are the quantiles of uniform draws.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.policy import AugmentPolicy, choose
from gpupipe.pipeline.step import Params, Primitives

Floats = NDArray[np.float64]

MAX_DRAWN_DEPTH = 3
"""The longest chain, if its length is drawn."""
_POINTS = 20_001
_TAIL = 40.0


def num_weight_uniforms(width: int) -> int:
    """Return how many uniform draws `draw_weights` needs for so many chains."""
    return width + 2


def draw_weights(u: Floats, alpha: float, width: int) -> Floats:
    """Draw the weights with which AugMix blends.

    Args:
        u: Uniform draws, (B, num_weight_uniforms(width)).
        alpha: The parameter of the Dirichlet and the beta distribution.
        width: The number of chains.

    Returns:
        (B, width + 1): the weight of the image, then those of the chains. Each row sums to 1.
    """
    gamma = np.maximum(gamma_quantile(u, alpha), np.finfo(np.float64).tiny)
    between, among = gamma[:, :2], gamma[:, 2:]
    share = between / between.sum(1, keepdims=True)
    chains = among / among.sum(1, keepdims=True) * share[:, 1:]
    return np.concatenate([share[:, :1], chains], 1)


def draw_depths(u: Floats) -> NDArray[np.int64]:
    """Turn uniform draws into lengths of chains from 1 to 3, as AugMix does by default."""
    return 1 + choose(u, MAX_DRAWN_DEPTH)


def cut_chains(op: NDArray[np.int32], depth: Any) -> NDArray[np.int32]:
    """Replace the operations after the end of each chain with Identity.

    Args:
        op: (B, width, longest): the operations.
        depth: (B, width): the lengths of the chains.
    """
    is_inside = np.arange(op.shape[-1]) < np.asarray(depth)[..., None]
    return np.where(is_inside, op, 0).astype(np.int32)


def lower_mix(policy: AugmentPolicy, image: Primitives, p: Params) -> None:
    """Apply the chains to a batch, and blend them.

    Args:
        policy: The policy, which applies each operation.
        image: The batch.
        p: op (B, width, longest) and value, and weight (B, width + 1).
    """

    def run_chain(part: Primitives, chain: int) -> None:
        for slot in range(p["op"].shape[2]):
            policy.lower_slot(part, p["op"][:, chain, slot], p["value"][:, chain, slot])

    chains = [partial(run_chain, chain=n) for n in range(p["op"].shape[1])]
    image.blend([lambda part: None, *chains], p["weight"])


def torch_mix(policy: AugmentPolicy, image: Any, p: Params) -> Any:
    """Apply the chains to an image in torch, and blend them as torchvision's AugMix does."""
    import torch

    weight = p["weight"].tolist()
    mix = weight[0] * image.to(torch.float32)
    for number, (ops, values) in enumerate(zip(p["op"], p["value"], strict=True), 1):
        mixed = image
        for op, value in zip(ops, values, strict=True):
            mixed = policy.torch_slot(mixed, op, value)
        mix.add_(mixed, alpha=weight[number])
    return mix.to(image.dtype)


def gamma_quantile(u: Floats, alpha: float) -> Floats:
    """Return the quantiles of the gamma distribution with shape `alpha` and scale 1.

    Args:
        u: Probabilities, of any shape.
        alpha: The shape, above 0.
    """
    cumulative, quantiles = _gamma_table(alpha)
    return np.interp(u, cumulative, quantiles)


@cache
def _gamma_table(alpha: float) -> tuple[Floats, Floats]:
    """Return the cumulative distribution at points x, and the points.

    For small shapes the density is steep at 0, or infinite. With y = x ** alpha it is exp(-x): the
    points are then equally spaced in y.
    """
    if alpha < 1.5:
        y = np.linspace(0.0, _TAIL**alpha, _POINTS)
        x = y ** (1.0 / alpha)
        density = np.exp(-x)
    else:
        reach = 12.0 * np.sqrt(alpha)
        y = x = np.linspace(max(alpha - reach, 0.0), alpha + reach + _TAIL, _POINTS)
        mode = alpha - 1.0
        with np.errstate(divide="ignore"):
            density = np.exp(mode * np.log(x / mode) - (x - mode))
    steps = np.diff(y) * (density[1:] + density[:-1]) / 2.0
    cumulative = np.concatenate([[0.0], np.cumsum(steps)])
    return cumulative / cumulative[-1], x
