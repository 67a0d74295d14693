"""random_photometric_distort: the colour augmentation of the detector SSD."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gpupipe.augment import color_ops
from gpupipe.augment.color_step import (
    ADJUSTMENTS,
    ColorStep,
    FactorPair,
    TurnPair,
    apply_where,
    lower_adjustment,
    torch_adjustment,
)
from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.step import Params, Primitives, Sampled, Uniforms
from gpupipe.schema.field_types import Probability


class RandomPhotometricDistort(ColorStep):
    """Distort the colours, as torchvision.transforms.v2.RandomPhotometricDistort.

    Brightness, contrast, saturation, hue and the order of the channels change, each with
    probability `p`. The contrast changes before the saturation or after the hue, which are equally
    probable. The input must be an image of 1 or 3 channels, of uint8 or of floats from 0 to 1.

    Attributes:
        brightness: [min, max] factor of brightness, at least 0. The default is [0.875, 1.125].
        contrast: [min, max] factor of contrast, at least 0. The default is [0.5, 1.5].
        saturation: [min, max] factor of saturation, at least 0. The default is [0.5, 1.5].
        hue: [min, max] turn of the hue in full turns, -0.5 to 0.5. The default is [-0.05, 0.05].
        p: The probability of each change, 0 to 1. The default is 0.5.
    """

    brightness: FactorPair = (0.875, 1.125)
    contrast: FactorPair = (0.5, 1.5)
    saturation: FactorPair = (0.5, 1.5)
    hue: TurnPair = (-0.05, 0.05)
    p: Probability = 0.5

    interpolates = True  # a later factor multiplies the level of an earlier one
    num_uniforms = 2 * len(ADJUSTMENTS) + 5

    def sample(self, u: Uniforms) -> Sampled:
        """Draw which changes each sample gets, and how strong they are.

        Returns:
            brightness, contrast, saturation, hue: float64 (B,), the factors; for hue, full turns.
            NAME_runs: int32 (B,), 1 if the sample gets the change NAME, else 0. NAME is brightness,
                contrast_first, contrast_last, saturation, hue or permutation.
            permutation: int32 (B, 3). Channel c of the output is channel permutation[n, c] of
                sample n.
        """
        factors = {
            name: draw_between(getattr(self, name), u[:, n]) for n, name in enumerate(ADJUSTMENTS)
        }
        runs = {name: u[:, len(ADJUSTMENTS) + n] < self.p for n, name in enumerate(ADJUSTMENTS)}
        is_first, runs["permutation"] = u[:, 8] < 0.5, u[:, 9] < self.p
        contrast = runs.pop("contrast")
        runs |= {"contrast_first": contrast & is_first, "contrast_last": contrast & ~is_first}
        flags = {f"{name}_runs": flag.astype(np.int32) for name, flag in runs.items()}
        permutation = np.argsort(u[:, 10:], axis=-1, kind="stable").astype(np.int32)
        return {**factors, **flags, "permutation": permutation}

    def lower_color(self, image: Primitives, p: Params) -> None:
        for name, runs in _ORDER:
            run = partial(lower_adjustment, name=name, factor=p[name])
            apply_where(p[f"{runs}_runs"], image, run)
        apply_where(
            p["permutation_runs"],
            image,
            lambda part: part.color("permute_channels", p["permutation"]),
        )

    def torch_color(self, image: Any, p: Params) -> Any:
        for name, runs in _ORDER:
            if p[f"{runs}_runs"]:
                image = torch_adjustment(image, name, p[name])
        if p["permutation_runs"]:
            image = color_ops.apply("permute_channels", image, [p["permutation"].tolist()])
        return image


_ORDER = (
    ("brightness", "brightness"),
    ("contrast", "contrast_first"),
    ("saturation", "saturation"),
    ("hue", "hue"),
    ("contrast", "contrast_last"),
)
"""The adjustments in order, each with the NAME of its flag NAME_runs."""
