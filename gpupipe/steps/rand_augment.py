"""rand_augment and trivial_augment_wide: apply operations that are drawn from 14."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from gpupipe.augment.policy import AugmentPolicy
from gpupipe.augment.policy_tables import (
    RAND_AUGMENT_MAGNITUDES,
    RAND_AUGMENT_OPS,
    Magnitudes,
    OpTable,
    choose,
    make_table,
)
from gpupipe.pipeline.step import Sampled, Uniforms
from gpupipe.schema.field_types import WHOLE

NumBins = Annotated[int, Field(ge=2, le=1000), WHOLE]

_DRAWS_PER_OP = 2
_TRIVIAL_MAGNITUDES = Magnitudes(0.99, ("", 32.0), 135.0, 0.99, (8, 6))


class RandAugment(AugmentPolicy):
    """Apply operations drawn from 14, as torchvision.transforms.v2.RandAugment.

    Each operation is drawn with equal probabilities, and with the magnitude that is given; half of
    the shears, translations, rotations and changes of a factor get a negative sign. Source:
    https://arxiv.org/abs/1909.13719. It works on uint8 images of 1 or 3 channels.

    Attributes:
        num_ops: How many operations follow each other, 0 to 16. The default is 2.
        magnitude: The magnitude bin of all operations, from 0 to num_magnitude_bins - 1. The
            default is 9.
        num_magnitude_bins: The number of magnitude bins, 2 to 1000. The default is 31.
    """

    num_ops: Annotated[int, Field(ge=0, le=16), WHOLE] = 2
    magnitude: Annotated[int, Field(ge=0), WHOLE] = 9
    num_magnitude_bins: NumBins = 31

    @model_validator(mode="after")
    def _check_magnitude(self) -> RandAugment:
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
            op: int32 (B, num_ops), the number of each operation in OPS.
            value: float64 (B, num_ops), the value of each operation: see policy_ops.
        """
        index = choose(u[:, : self.num_ops], len(RAND_AUGMENT_OPS))
        return self.table.get(index, self.magnitude, u[:, self.num_ops :])

    @property
    def table(self) -> OpTable:
        return make_table(RAND_AUGMENT_OPS, RAND_AUGMENT_MAGNITUDES, self.num_magnitude_bins)


class TrivialAugmentWide(AugmentPolicy):
    """Apply one operation of 14, as torchvision.transforms.v2.TrivialAugmentWide.

    The operation and its magnitude are drawn with equal probabilities; half of the shears,
    translations, rotations and changes of a factor get a negative sign. Source:
    https://arxiv.org/abs/2103.10158. It works on uint8 images of 1 or 3 channels.

    Attributes:
        num_magnitude_bins: The number of magnitude bins, 2 to 1000. The default is 31.
    """

    num_magnitude_bins: NumBins = 31

    num_uniforms = 3

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the operation of each sample.

        Returns:
            op: int32 (B, 1), the number of the operation in OPS.
            value: float64 (B, 1), the value of the operation: see policy_ops.
        """
        index = choose(u[:, :1], len(RAND_AUGMENT_OPS))
        magnitude_bin = choose(u[:, 1:2], self.num_magnitude_bins)
        return self.table.get(index, magnitude_bin, u[:, 2:])

    @property
    def table(self) -> OpTable:
        return make_table(RAND_AUGMENT_OPS, _TRIVIAL_MAGNITUDES, self.num_magnitude_bins)
