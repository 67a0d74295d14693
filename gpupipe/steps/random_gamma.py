"""random_gamma: change the gamma of images at random."""

from gpupipe.augment.color_step import FactorPair, RandomColorStep
from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.step import Sampled, Uniforms


class RandomGamma(RandomColorStep):
    """Change the gamma at random, as torchvision.transforms.v2.functional.adjust_gamma.

    Each value, on a scale from 0 to 1, is raised to the power gamma. A gamma below 1 makes the
    image brighter, and a gamma above 1 makes it darker. The input must be an image of 1 or 3
    channels, of uint8 or of floats from 0 to 1.

    Attributes:
        gamma: [min, max] of the power, which is drawn uniformly; both at least 0. A power of 1
            changes nothing. The default is [0.8, 1.2], as in Albumentations.
        p: The probability of the change, 0 to 1. The default is 0.5.
    """

    gamma: FactorPair = (0.8, 1.2)

    op = "adjust_gamma"
    num_uniforms = 2

    def sample(self, u: Uniforms) -> Sampled:
        """Draw which samples change, and a gamma for each.

        Returns:
            A dict of arrays for B samples:
            `runs`: int32 (B,), 1 for the samples to change, else 0.
            `gamma`: float64 (B,), the power for each sample.
        """
        return super().sample(u) | {"gamma": draw_between(self.gamma, u[:, 1])}
