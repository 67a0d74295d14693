"""timm_augment: the policies that timm writes as strings, such as rand-m9-mstd0.5-inc1."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from gpupipe.augment.policy import AugmentPolicy
from gpupipe.augment.policy_ops import OPS, op_numbers
from gpupipe.augment.policy_tables import choose, to_arrays
from gpupipe.augment.timm_policies import (
    MAX_LEVEL,
    OPERATIONS,
    UNIFORM,
    TimmPolicy,
    op_names,
    read_policy,
)
from gpupipe.pipeline.step import Sampled, Uniforms
from gpupipe.schema.field_types import Fill, Resampling

Floats = NDArray[np.float64]

_DRAWS_PER_OP = 6
"""The uniform draws for an operation: one for its index, one for whether it is applied, two for its
level, one for its sign and one for its value.
"""
_MAX_THRESHOLD = 255.0
_SOLARIZE = OPS.index("Solarize")
_RANDOM_BLUR = "GaussianBlurRand"
"""The operation whose value is drawn beside its level."""


class TimmAugment(AugmentPolicy):
    """Apply a policy that timm writes as a string (its parameter `auto_augment`).

    A policy is rand, augmix, original, originalr, v0, v0r or 3a, followed by sections, each with a
    number. In brackets stand the meaning of the section and its default:

    - rand: m (magnitude, 10), n (operations, 2), p (the probability of each, 0.5), mstd (standard
      deviation of the magnitude; above 100: uniform from 0), mmax (the largest magnitude, 10),
      inc1 (operations that grow stronger with the magnitude), and tweights, t3a, t3aw (weighted
      sets of operations) or w0 (weights that timm had until 2022, and refuses since).
    - augmix: m (magnitude, 3), w (chains, 3), d (length of a chain; drawn from 1 to 3), a (alpha,
      1), mstd (by default the magnitude is uniform), b1 (changes rounding only, and nothing here).
      Images are shifted by up to 0.3 of their side, as timm's create_transform sets it for augmix.
    - the others: mstd.

    Operations are drawn as timm draws them, and are computed with torchvision's functions, where
    timm computes them with PIL. The step works on uint8 images of 1 or 3 channels. Source:
    timm/data/auto_augment.py.

    Attributes:
        policy: The policy, such as rand-m7-mstd0.5-inc1.
        interpolation: "nearest" or "bilinear" (the default). timm draws bilinear or bicubic for
            each operation, unless its training interpolation is set.
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is 128. timm's loader takes 255 times the mean, [124, 116, 104] for ImageNet.
    """

    policy: str
    interpolation: Resampling = "bilinear"
    fill: Fill | None = (128.0,)

    has_whole_shifts = False
    example = {"policy": "rand-m9-mstd0.5-inc1"}

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, value: str) -> str:
        read_policy(value)
        return value

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws that one sample needs."""
        policy = self._read
        if policy.mixture:
            return policy.mixture.num_uniforms(_DRAWS_PER_OP)
        return policy.num_ops * _DRAWS_PER_OP + (policy.kind == "auto")

    @property
    def has_chains(self) -> bool:  # type: ignore[override]
        """Whether the policy blends chains of operations: only augmix does."""
        return self._read.mixture is not None

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the operations of each sample.

        Returns:
            A dict of arrays for B samples:
            `op`: int32 (B, n), the index in augment.policy_ops.OPS of each of a sample's n
                operations. For augmix it is (B, chains, n): n is the length of the longest chain.
            `value`: float64 of the same shape, the value of each operation: see policy_ops.
            `weight`: float64 (B, chains + 1), the weight of the image, then of each chain. Only for
                augmix.
        """
        policy = self._read
        if policy.mixture:
            return policy.mixture.draw(u, _DRAWS_PER_OP, partial(_draw_equally, policy))
        return _draw_slots(policy, u)

    @property
    def op_names(self) -> Sequence[str]:
        return op_names(self._read.ops)

    @property
    def _read(self) -> TimmPolicy:
        return read_policy(self.policy)


def _draw_equally(policy: TimmPolicy, draws: Floats) -> Sampled:
    """Draw operations for augmix, all equally probable, with strengths around its magnitude."""
    return _get(policy, choose(draws[0], len(policy.ops)), policy.magnitude, draws)


def _draw_slots(policy: TimmPolicy, u: Floats) -> Sampled:
    """Draw the operations of a policy other than augmix.

    An operation that is not applied, by its probability, has 0 (the identity) as its `op`.
    """
    draws = _by_draw(u[:, int(policy.kind == "auto") :], policy.num_ops)
    index: Any
    probability: Any = policy.probability
    magnitude: Any = policy.magnitude
    if policy.kind == "auto":
        table = to_arrays(policy.sub_policies, policy.ops)
        row = choose(u[:, 0], len(table[0]))
        index, probability, magnitude = (column[row] for column in table)
    elif policy.weights is None:
        index = choose(draws[0], len(policy.ops))
    else:
        index = _choose_weighted(draws[0], policy.weights)
    drawn = _get(policy, index, magnitude, draws)
    return drawn | {"op": np.where(draws[1] < probability, drawn["op"], 0).astype(np.int32)}


def _get(policy: TimmPolicy, index: Any, magnitude: Any, draws: Floats) -> Sampled:
    """Draw a level (strength) and a sign for each operation; return the dict of get_ops()."""
    level = draw_levels(magnitude, policy.std, policy.largest, draws[2:4])
    return get_ops(policy.ops, index, level, draws[4:])


def draw_levels(magnitude: Any, std: float, largest: float, u: Floats) -> Any:
    """Draw levels (strengths of operations) around a magnitude, clipped to 0 to `largest`.

    Args:
        magnitude: The magnitude, a number or an array (...).
        std: The standard deviation. With 0 all levels are `magnitude`; with the constant UNIFORM
            they are uniform from 0 to `magnitude`.
        largest: The largest level.
        u: Uniform draws, (2, ...).
    """
    if std == UNIFORM:
        levels = u[0] * magnitude
    else:
        normal = np.sqrt(-2.0 * np.log(1.0 - u[0])) * np.cos(2.0 * np.pi * u[1])
        levels = magnitude + std * normal
    return np.clip(levels, 0.0, largest)


def get_ops(names: Sequence[str], index: Any, level: Any, u: Floats) -> Sampled:
    """Return the arrays `op` and `value` of drawn operations.

    Args:
        names: timm's names of the operations.
        index: The drawn operations, as positions in `names`.
        level: The level of each operation; its shape must broadcast to that of `index`.
        u: Uniform draws, (2, ...): `u[0]` for the signs, `u[1]` for operations that draw a value.

    Returns:
        A dict of arrays in the shape of `index`:
        `op`: int32, the index of each operation in augment.policy_ops.OPS.
        `value`: float64, the value of each operation: see policy_ops.
    """
    table = _make_table(tuple(names))
    f = level / MAX_LEVEL
    core = np.minimum(f * table.scale[index], table.limit[index])
    np.floor(core, out=core, where=table.is_whole[index])
    sign = np.where(u[0] > 0.5, -1.0, 1.0)
    factor = np.where(table.factor[index] == 0.0, sign, table.factor[index])
    value = np.maximum(table.start[index] + factor * core, table.lowest[index])
    if _RANDOM_BLUR in names:
        is_random = index == names.index(_RANDOM_BLUR)
        value = np.where(is_random, 0.1 + u[1] * (value - 0.1), value)
    op = table.numbers[index]
    # torchvision refuses a threshold above 255, which no pixel reaches.
    is_idle = (op == _SOLARIZE) & (value > _MAX_THRESHOLD)
    return {"op": np.where(is_idle, 0, op).astype(np.int32), "value": value}


@dataclass(frozen=True)
class _Table:
    """The columns of OPERATIONS for some operations: see Strength. `numbers` are those in OPS."""

    numbers: NDArray[np.int32]
    scale: Floats
    start: Floats
    factor: Floats
    is_whole: NDArray[np.bool_]
    limit: Floats
    lowest: Floats


@cache
def _make_table(names: tuple[str, ...]) -> _Table:
    owns, strengths = zip(*(OPERATIONS[name] for name in names), strict=True)
    return _Table(op_numbers(owns), *map(np.array, zip(*strengths, strict=True)))


def _by_draw(u: Floats, slots: int) -> Floats:
    """Reshape uniform draws (B, draws per operation * slots) to (draws per operation, B, slots).

    `slots` is the number of operations of a sample.
    """
    return np.moveaxis(u.reshape(len(u), _DRAWS_PER_OP, slots), 1, 0)


def _choose_weighted(u: Floats, weights: Sequence[float]) -> NDArray[np.int64]:
    """Draw a position in `weights` for each entry of `u`, without replacement within a row.

    Like np.random.choice with `p`: a drawn position has weight 0 for the rest of the row.

    Args:
        u: Uniform draws, (B, slots), one for each of a sample's operations.
        weights: The weight of each position.

    Returns:
        int64 (B, slots).
    """
    left = np.tile(np.array(weights, np.float64), (len(u), 1))
    rows = np.arange(len(u))
    index = np.zeros(u.shape, np.int64)
    for slot in range(u.shape[1]):
        bounds = np.cumsum(left, 1)
        target = u[:, slot] * bounds[:, -1]
        index[:, slot] = (bounds <= target[:, None]).sum(1)
        left[rows, index[:, slot]] = 0.0
    return index
