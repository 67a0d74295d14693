"""Steps that apply operations from a table: torchvision's policies.

They are aug_mix, auto_augment, rand_augment and trivial_augment_wide.
"""

from functools import cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from gpupipe.augment.policy import AugmentPolicy, ChainMixture
from gpupipe.augment.policy_tables import (
    CIFAR10,
    IMAGENET,
    RAND_AUGMENT_MAGNITUDES,
    RAND_AUGMENT_OPS,
    SVHN,
    Magnitudes,
    OpTable,
    choose,
    make_table,
    to_arrays,
)
from gpupipe.pipeline.step import Sampled, Uniforms
from gpupipe.schema.field_types import NUMBER, WHOLE, Resampling

NumBins = Annotated[int, Field(ge=2, le=1000), WHOLE]

_SUB_POLICIES = {"imagenet": IMAGENET, "cifar10": CIFAR10, "svhn": SVHN}
_NUM_BINS = 10
_DRAWS_PER_OP, _MIX_DRAWS_PER_OP = 2, 3
_TRIVIAL_MAGNITUDES = Magnitudes(0.99, ("", 32.0), 135.0, 0.99, (8, 6))
_MIX_OPS = tuple(
    "ShearX ShearY TranslateX TranslateY Rotate Posterize Solarize AutoContrast Equalize".split()
)
_MIX_FURTHER_OPS = ("Brightness", "Color", "Contrast", "Sharpness")
_MIX_MAGNITUDES = Magnitudes(0.3, ("Rel", 1.0 / 3.0), 30.0, 0.9, (4, 4))


class AugMix(AugmentPolicy):
    """Blend chains of drawn operations with the image, as torchvision.transforms.v2.AugMix.

    Each chain applies a few drawn operations one after the other. The weights of the chains are
    drawn from a Dirichlet distribution, and the weight of the unchanged image from a beta
    distribution. Source: https://arxiv.org/abs/1912.02781. The step works on uint8 images of 1 or 3
    channels, and not on masks.

    Attributes:
        severity: The highest strength that an operation may draw, from 1, the weakest, to 10. The
            default is 3.
        mixture_width: The number of chains, 1 to 16. The default is 3.
        chain_depth: The number of operations in a chain, 1 to 16. With -1, the default, this number
            is drawn from 1 to 3 for each chain.
        alpha: The parameter of both distributions, 0.05 to 100. The default is 1.
        all_ops: Whether Brightness, Color, Contrast and Sharpness are among the operations. The
            default is true.
        interpolation: "nearest" or "bilinear" (the default), for the operations that move pixels.
    """

    severity: Annotated[int, Field(ge=1, le=_NUM_BINS), WHOLE] = 3
    mixture_width: Annotated[int, Field(ge=1, le=16), WHOLE] = 3
    chain_depth: Annotated[int, Field(ge=-1, le=16), WHOLE] = -1
    alpha: Annotated[float, Field(ge=0.05, le=100), NUMBER] = 1.0
    all_ops: bool = True
    interpolation: Resampling = "bilinear"

    has_chains = True

    @field_validator("chain_depth")
    @classmethod
    def _check_depth(cls, value: int) -> int:
        if value == 0:
            raise ValueError("chain_depth is 0: write -1 to draw it from 1 to 3, or at least 1")
        return value

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws that one sample needs."""
        return self._mixture.num_uniforms(_MIX_DRAWS_PER_OP)

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the chains of each sample.

        Returns:
            A dict of arrays for B samples:
            `op`: int32 (B, mixture_width, longest chain), the index of each operation in
                augment.policy_ops.OPS; 0, the identity, after the end of a chain.
            `value`: float64 of the same shape, the value of each operation: see policy_ops.
            `weight`: float64 (B, mixture_width + 1), the weight of the image, then of each chain.
        """
        return self._mixture.draw(u, _MIX_DRAWS_PER_OP, self._draw_ops)

    def _draw_ops(self, draws: Uniforms) -> Sampled:
        index = choose(draws[0], len(self.table.names))
        return self.table.get(index, choose(draws[1], self.severity), draws[2])

    @property
    def _mixture(self) -> ChainMixture:
        return ChainMixture(self.mixture_width, max(self.chain_depth, 0), self.alpha)

    @property
    def table(self) -> OpTable:
        names = (*_MIX_OPS, *_MIX_FURTHER_OPS) if self.all_ops else _MIX_OPS
        return make_table(names, _MIX_MAGNITUDES, _NUM_BINS)


class AutoAugment(AugmentPolicy):
    """Apply one of 25 pairs of operations, as torchvision.transforms.v2.AutoAugment.

    The pair is drawn with equal probabilities; then each of its operations is applied or not, with
    a probability of its own. Source: https://arxiv.org/abs/1805.09501. The step works on uint8
    images of 1 or 3 channels.

    Attributes:
        policy: The data set for which the pairs were found: "imagenet" (the default), "cifar10" or
            "svhn".
    """

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"

    num_uniforms = 5

    def sample(self, u: Uniforms) -> Sampled:
        """Draw two operations for each sample.

        Returns:
            A dict of arrays for B samples:
            `op`: int32 (B, 2), the index of each operation in augment.policy_ops.OPS; 0, the
                identity, for an operation that is not applied.
            `value`: float64 (B, 2), the value of each operation: see policy_ops.
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


class RandAugment(AugmentPolicy):
    """Apply operations that are drawn from 14, as torchvision.transforms.v2.RandAugment.

    The 14 operations are equally probable, and all have the same `magnitude`. A shear, translation,
    rotation or change of a factor goes in the negative direction with probability 1/2. Source:
    https://arxiv.org/abs/1909.13719. The step works on uint8 images of 1 or 3 channels.

    Attributes:
        num_ops: How many operations are drawn and applied in turn, 0 to 16. The default is 2.
        magnitude: The magnitude bin of all operations, from 0 to num_magnitude_bins - 1. The
            default is 9.
        num_magnitude_bins: The number of magnitude bins, 2 to 1000. The default is 31.
    """

    num_ops: Annotated[int, Field(ge=0, le=16), WHOLE] = 2
    magnitude: Annotated[int, Field(ge=0), WHOLE] = 9
    num_magnitude_bins: NumBins = 31

    @model_validator(mode="after")
    def _check_magnitude(self) -> "RandAugment":
        if self.magnitude >= self.num_magnitude_bins:
            raise ValueError(
                f"magnitude is {self.magnitude}, but num_magnitude_bins is "
                f"{self.num_magnitude_bins}: write a magnitude of at most "
                f"{self.num_magnitude_bins - 1}"
            )
        return self

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws that one sample needs."""
        return _DRAWS_PER_OP * self.num_ops

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the operations of each sample.

        Returns:
            A dict of arrays for B samples:
            `op`: int32 (B, num_ops), the index of each operation in augment.policy_ops.OPS.
            `value`: float64 (B, num_ops), the value of each operation: see policy_ops.
        """
        index = choose(u[:, : self.num_ops], len(RAND_AUGMENT_OPS))
        return self.table.get(index, self.magnitude, u[:, self.num_ops :])

    @property
    def table(self) -> OpTable:
        return make_table(RAND_AUGMENT_OPS, RAND_AUGMENT_MAGNITUDES, self.num_magnitude_bins)


class TrivialAugmentWide(AugmentPolicy):
    """Apply one operation of 14, as torchvision.transforms.v2.TrivialAugmentWide.

    All operations are equally probable, and so are all magnitudes. A shear, translation, rotation
    or change of a factor goes in the negative direction with probability 1/2. Source:
    https://arxiv.org/abs/2103.10158. The step works on uint8 images of 1 or 3 channels.

    Attributes:
        num_magnitude_bins: The number of magnitude bins, 2 to 1000. The default is 31.
    """

    num_magnitude_bins: NumBins = 31

    num_uniforms = 3

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the operation of each sample.

        Returns:
            A dict of arrays for B samples:
            `op`: int32 (B, 1), the index of the operation in augment.policy_ops.OPS.
            `value`: float64 (B, 1), the value of the operation: see policy_ops.
        """
        index = choose(u[:, :1], len(RAND_AUGMENT_OPS))
        magnitude_bin = choose(u[:, 1:2], self.num_magnitude_bins)
        return self.table.get(index, magnitude_bin, u[:, 2:])

    @property
    def table(self) -> OpTable:
        return make_table(RAND_AUGMENT_OPS, _TRIVIAL_MAGNITUDES, self.num_magnitude_bins)
