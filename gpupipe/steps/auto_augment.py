"""auto_augment: apply a pair of operations that AutoAugment found for a data set."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from gpupipe.augment.policy import AugmentPolicy
from gpupipe.augment.policy_tables import (
    CIFAR10,
    IMAGENET,
    RAND_AUGMENT_MAGNITUDES,
    SVHN,
    OpTable,
    choose,
    make_table,
    to_arrays,
)
from gpupipe.pipeline.step import Sampled, Uniforms

_SUB_POLICIES = {"imagenet": IMAGENET, "cifar10": CIFAR10, "svhn": SVHN}
_NUM_BINS = 10


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
            op: int32 (B, 2), the number of each operation in OPS.
            value: float64 (B, 2), the value of each operation: see policy_ops.
        """
        index, probability, level = to_arrays(_SUB_POLICIES[self.policy], _list_names(self.policy))
        pair = choose(u[:, 0], len(index))
        drawn = self.table.get(index[pair], level[pair], u[:, 3:5])
        is_applied = u[:, 1:3] < probability[pair]
        return drawn | {"op": np.where(is_applied, drawn["op"], 0).astype(np.int32)}

    @property
    def table(self) -> OpTable:
        return make_table(_list_names(self.policy), RAND_AUGMENT_MAGNITUDES, _NUM_BINS)


@cache
def _list_names(policy: str) -> tuple[str, ...]:
    """Return the sorted names of the operations in a policy."""
    return tuple(sorted({name for pair in _SUB_POLICIES[policy] for name, _, _ in pair}))
