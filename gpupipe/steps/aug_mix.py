"""aug_mix: blend chains of drawn operations with the image."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from gpupipe.augment.policy import AugmentPolicy, ChainMixture
from gpupipe.augment.policy_tables import Magnitudes, OpTable, choose, make_table
from gpupipe.pipeline.step import Sampled, Uniforms
from gpupipe.schema.field_types import NUMBER, WHOLE, Resampling

_OPS = tuple(
    "ShearX ShearY TranslateX TranslateY Rotate Posterize Solarize AutoContrast Equalize".split()
)
_FURTHER_OPS = ("Brightness", "Color", "Contrast", "Sharpness")
_LARGEST = Magnitudes(0.3, ("Rel", 1.0 / 3.0), 30.0, 0.9, (4, 4))
_NUM_BINS = 10
_DRAWS_PER_OP = 3


class AugMix(AugmentPolicy):
    """Blend chains of drawn operations with the image, as torchvision.transforms.v2.AugMix.

    Each chain applies a few drawn operations one after the other. The weights of the chains are
    drawn from a Dirichlet distribution, and the weight of the unchanged image from a beta
    distribution. Source: https://arxiv.org/abs/1912.02781. The step works on uint8 images of 1 or 3
    channels, and not on masks.

    Attributes:
        severity: The number of strengths, 1 to 10, from which each operation draws its own: the
            weakest `severity` of ten. The default is 3.
        mixture_width: The number of chains, 1 to 16. The default is 3.
        chain_depth: The number of operations in a chain, 1 to 16. With -1, the default, each chain
            draws it from 1 to 3.
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
        return self._mixture.num_uniforms(_DRAWS_PER_OP)

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the chains of each sample.

        Returns:
            op: int32 (B, mixture_width, longest chain), the number of each operation in OPS; 0
                after the end of a chain.
            value: float64 of the same shape, the value of each operation: see policy_ops.
            weight: float64 (B, mixture_width + 1), of the image and of each chain.
        """
        return self._mixture.draw(u, _DRAWS_PER_OP, self._draw_ops)

    def _draw_ops(self, draws: Uniforms) -> Sampled:
        index = choose(draws[0], len(self.table.names))
        return self.table.get(index, choose(draws[1], self.severity), draws[2])

    @property
    def _mixture(self) -> ChainMixture:
        return ChainMixture(self.mixture_width, max(self.chain_depth, 0), self.alpha)

    @property
    def table(self) -> OpTable:
        names = (*_OPS, *_FURTHER_OPS) if self.all_ops else _OPS
        return make_table(names, _LARGEST, _NUM_BINS)
