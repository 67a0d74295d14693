"""random_brightness_contrast: scale the levels of images at random, and shift them."""

from typing import Annotated, Any

from gpupipe.augment.color_step import RandomColorStep
from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.step import Params, Sampled, Uniforms
from gpupipe.schema.field_types import ORDERED, Finite, spread

_Limit = Annotated[
    tuple[Finite, Finite], spread("a number a of at least 0 for [-a, a], or [min, max]"), ORDERED
]


class RandomBrightnessContrast(RandomColorStep):
    """Change contrast and brightness, as albumentations.RandomBrightnessContrast.

    Each value x becomes (1 + contrast) * x + brightness * m, where m is the largest value of the
    dtype, 255 or 1, or the mean of the image. Results are clamped, and those of uint8 truncated.
    (torchvision's ColorJitter multiplies for the brightness, and changes the contrast around the
    mean luma: see color_jitter.) The input must be an image of 1 or 3 channels, of uint8 or of
    floats from 0 to 1.

    Attributes:
        brightness_limit: [min, max] of the brightness, drawn uniformly; a number a means [-a, a].
            The default is [-0.2, 0.2].
        contrast_limit: [min, max] of the contrast, in the same way. The default is [-0.2, 0.2].
        brightness_by_max: Whether m is the largest value of the dtype (the default), or the mean
            of all values of the image.
        p: The probability of the change, 0 to 1. The default is 0.5.
    """

    brightness_limit: _Limit = (-0.2, 0.2)
    contrast_limit: _Limit = (-0.2, 0.2)
    brightness_by_max: bool = True

    num_uniforms = 3

    @property
    def op(self) -> str:  # type: ignore[override]
        """The function, a name of `COLOR_OPS`."""
        return "scale_and_shift" if self.brightness_by_max else "scale_and_shift_by_mean"

    def sample(self, u: Uniforms) -> Sampled:
        """Draw which samples change, and a contrast and a brightness for each.

        Returns:
            A dict of arrays for B samples:
            `runs`: int32 (B,), 1 for the samples to change, else 0.
            `factor`: float64 (B,), 1 + contrast.
            `shift`: float64 (B,), the brightness.
        """
        return super().sample(u) | {
            "factor": 1.0 + draw_between(self.contrast_limit, u[:, 1]),
            "shift": draw_between(self.brightness_limit, u[:, 2]),
        }

    def op_values(self, p: Params) -> tuple[Any, ...]:
        return p["factor"], p["shift"]
