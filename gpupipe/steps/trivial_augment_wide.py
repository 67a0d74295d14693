"""trivial_augment_wide: apply one drawn operation with a drawn magnitude."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupipe.augment.policy import AugmentPolicy
from gpupipe.augment.policy_tables import RAND_AUGMENT_OPS, Magnitudes, OpTable, choose, make_table
from gpupipe.pipeline.step import Sampled, Uniforms
from gpupipe.schema.field_types import WHOLE

_LARGEST = Magnitudes(0.99, ("", 32.0), 135.0, 0.99, (8, 6))


class TrivialAugmentWide(AugmentPolicy):
    """Apply one operation of 14, as torchvision.transforms.v2.TrivialAugmentWide.

    The operation and its magnitude are drawn with equal probabilities; half of the shears,
    translations, rotations and changes of a factor get a negative sign. Source:
    https://arxiv.org/abs/2103.10158. It works on uint8 images of 1 or 3 channels.

    Attributes:
        num_magnitude_bins: The number of magnitude bins, 2 to 1000. The default is 31.
    """

    num_magnitude_bins: Annotated[int, Field(ge=2, le=1000), WHOLE] = 31

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
        return make_table(RAND_AUGMENT_OPS, _LARGEST, self.num_magnitude_bins)
