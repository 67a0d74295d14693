"""auto_augment: apply a pair of operations that AutoAugment found for a data set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.policy import (
    RAND_AUGMENT_MAGNITUDES,
    AugmentPolicy,
    OpTable,
    choose,
    make_table,
)
from gpupipe.augment.sub_policies import CIFAR10, IMAGENET, SVHN
from gpupipe.pipeline.step import Sampled, Uniforms

_SUB_POLICIES = {"imagenet": IMAGENET, "cifar10": CIFAR10, "svhn": SVHN}
_NUM_BINS = 10
_NEGATIVE_BELOW = 0.5


class AutoAugment(AugmentPolicy):
    """Apply one of 25 pairs of operations, as torchvision.transforms.v2.AutoAugment.

    The pair is drawn with equal probabilities; then each of its operations is applied or not, with
    a probability of its own. Source: https://arxiv.org/abs/1805.09501. It works on uint8 images of
    1 or 3 channels.

    Attributes:
        policy: The data set for which the pairs were found: "imagenet" (the default), "cifar10" or
            "svhn".
    """

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"

    num_uniforms = 5

    def sample(self, u: Uniforms) -> Sampled:
        """Draw two operations for each sample.

        Returns:
            op: int32 (B, 2), numbers in OPS.
            value: float64 (B, 2), their values: see policy_ops.
        """
        table, index, probability, level = _tables(self.policy)
        pair = choose(u[:, 0], len(index))
        is_applied = u[:, 1:3] < probability[pair]
        drawn = table.look_up(index[pair], level[pair], u[:, 3:5] < _NEGATIVE_BELOW)
        return {
            "op": np.where(is_applied, drawn["op"], 0).astype(np.int32),
            "value": drawn["value"],
        }

    @property
    def op_names(self) -> Sequence[str]:
        return _tables(self.policy)[0].names


@cache
def _tables(policy: str) -> tuple[OpTable, NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the operations, and per pair: positions, probabilities and levels, (25, 2) each."""
    pairs = _SUB_POLICIES[policy]
    names = sorted({name for pair in pairs for name, _, _ in pair})
    index = np.array([[names.index(name) for name, _, _ in pair] for pair in pairs])
    probability = np.array([[p for _, p, _ in pair] for pair in pairs])
    level = np.array([[level for _, _, level in pair] for pair in pairs])
    return make_table(tuple(names), RAND_AUGMENT_MAGNITUDES, _NUM_BINS), index, probability, level
