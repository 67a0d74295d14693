"""rand_augment: apply drawn operations, all with the same magnitude."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from gpupipe.augment.policy import AugmentPolicy
from gpupipe.augment.policy_tables import (
    RAND_AUGMENT_MAGNITUDES,
    RAND_AUGMENT_OPS,
    OpTable,
    choose,
    make_table,
)
from gpupipe.pipeline.step import Sampled, Uniforms
from gpupipe.schema.field_types import WHOLE

_DRAWS_PER_OP = 2


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
    num_magnitude_bins: Annotated[int, Field(ge=2, le=1000), WHOLE] = 31

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
