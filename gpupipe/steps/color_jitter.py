"""color_jitter and random_photometric_distort: change brightness, contrast, saturation and hue."""

from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.augment import color_ops
from gpupipe.augment.color_branches import ColorBranches
from gpupipe.augment.color_step import ColorStep, FactorPair, apply_where
from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.step import Params, Primitives, Sampled, Uniforms
from gpupipe.schema.field_types import (
    NUMBER,
    ORDERED,
    NotNegative,
    Probability,
    spread,
    two_numbers,
)

ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")
"""The adjustments, in torchvision's order. `Primitives.color` has each as adjust_NAME."""

Turn = Annotated[float, Field(ge=-0.5, le=0.5, allow_inf_nan=False), NUMBER]
Factors = Annotated[
    tuple[NotNegative, NotNegative],
    spread("a number a of at least 0 for [max(0, 1 - a), 1 + a], or [min, max]", 1.0, lowest=0.0),
    ORDERED,
]
"""[min, max] of a factor, where 1 changes nothing; torchvision's short form is read too."""
Turns = Annotated[
    tuple[Turn, Turn],
    spread("a number a from 0 to 0.5 for [-a, a], or [min, max]", max_spread=0.5),
    ORDERED,
]
"""[min, max] of the hue's turn, in full turns; torchvision's short form is read too."""

TurnPair = Annotated[tuple[Turn, Turn], two_numbers("[min, max], from -0.5 to 0.5"), ORDERED]
"""[min, max] of the hue's turn, in full turns, without the short form."""


def lower_adjustment(image: Primitives, name: str, factor: NDArray[np.float64]) -> None:
    """Apply an adjustment, such as "contrast", to a batch, with a factor per sample, (B,)."""
    image.color(f"adjust_{name}", factor)


def torch_adjustment(image: Any, name: str, factor: Any) -> Any:
    """Apply an adjustment, such as "contrast", to one torch image, with one factor."""
    return color_ops.apply(f"adjust_{name}", image, [float(factor)])


class ColorJitter(ColorStep):
    """Change brightness, contrast, saturation and hue, as torchvision.transforms.v2.ColorJitter.

    The order of the changes is drawn for each sample, and each factor uniformly from its range. A
    parameter that is left out, or whose range has no effect, costs nothing. The input must be an
    image of 1 or 3 channels, of uint8 or of floats from 0 to 1. Saturation and hue change nothing
    in an image of one channel. DALI on a CPU takes about the time of torchvision for contrast and
    hue, and several times as long for saturation.

    Attributes:
        brightness: The factor of brightness: a number a for [max(0, 1 - a), 1 + a], or [min,
            max]. At least 0; 1 changes nothing. By default the brightness is not changed.
        contrast: The factor of contrast, in the same form as `brightness`.
        saturation: The factor of saturation, in the same form as `brightness`.
        hue: The turn of the hue in full turns: a number a for [-a, a], or [min, max]; -0.5 to
            0.5. By default the hue is not turned.
    """

    brightness: Factors | None = None
    contrast: Factors | None = None
    saturation: Factors | None = None
    hue: Turns | None = None

    example = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
    interpolates = True  # a later factor multiplies the level of an earlier one
    num_uniforms = 2 * len(ADJUSTMENTS)
    speed_advice = "leave hue out on a CPU: it costs more than the other three together"

    @property
    def _ranges(self) -> dict[str, tuple[float, float]]:
        """A dict from the name of each adjustment that has an effect to its range."""
        ranges = {name: getattr(self, name) for name in ADJUSTMENTS}
        none = {name: (0.0, 0.0) if name == "hue" else (1.0, 1.0) for name in ADJUSTMENTS}
        return {n: bounds for n, bounds in ranges.items() if bounds not in (None, none[n])}

    def sample(self, u: Uniforms) -> Sampled:
        """Draw the factor of each adjustment that has an effect, and the order of these.

        Returns:
            A dict of arrays for B samples:
            `order`: int32 (B, n), the order in which a sample gets the n adjustments that have an
                effect. Each is its index among them, as listed: brightness, contrast, saturation,
                hue.
            `brightness`, `contrast`, `saturation`, `hue`: float64 (B,), the factor; for hue, full
                turns. Only for adjustments that have an effect.
        """
        columns = [ADJUSTMENTS.index(name) for name in self._ranges]
        order = np.argsort(u[:, columns], axis=-1, kind="stable").astype(np.int32)
        factors = {
            name: draw_between(bounds, u[:, len(ADJUSTMENTS) + column])
            for column, (name, bounds) in zip(columns, self._ranges.items(), strict=True)
        }
        return {"order": order, **factors}

    def lower_color(self, image: Primitives, p: Params) -> None:
        names = list(self._ranges)
        factors = [p[name] for name in names]
        branches = ColorBranches(tuple(f"adjust_{name}" for name in names), factors)
        if len(branches) == 1:
            branches[0](image)
            return
        for place in range(len(names)):
            image.switch(p["order"][:, place], branches)

    def torch_color(self, image: Any, p: Params) -> Any:
        names = list(self._ranges)
        for number in p["order"]:
            image = torch_adjustment(image, names[number], p[names[number]])
        return image


class RandomPhotometricDistort(ColorStep):
    """Distort the colours, as torchvision.transforms.v2.RandomPhotometricDistort.

    Brightness, contrast, saturation, hue and the order of the channels change, each with
    probability `p`. The contrast changes either before the saturation or after the hue, each with
    probability 1/2. The input must be an image of 1 or 3 channels, of uint8 or of floats from 0
    to 1.

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
            A dict of arrays for B samples:
            `brightness`, `contrast`, `saturation`, `hue`: float64 (B,), the factors; for hue, full
                turns.
            `permutation_runs`, and its like for brightness, contrast_first, contrast_last,
                saturation and hue: int32 (B,), 1 if the sample gets that change, else 0.
            `permutation`: int32 (B, 3). Channel c of the output is channel permutation[n, c] of
                the input, for sample n.
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
