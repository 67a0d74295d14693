"""color_jitter: change brightness, contrast, saturation and hue at random."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gpupipe.augment.color_step import (
    ADJUSTMENTS,
    ColorStep,
    Factors,
    Turns,
    lower_adjustment,
    torch_adjustment,
)
from gpupipe.pipeline.geometry import draw_between
from gpupipe.pipeline.step import Params, Primitives, Sampled, Uniforms


class ColorJitter(ColorStep):
    """Change brightness, contrast, saturation and hue, as torchvision.transforms.v2.ColorJitter.

    The order of the changes is drawn for each sample, and each factor uniformly from its range. A
    parameter that is left out, or whose range has no effect, costs nothing. The input must be an
    image of 1 or 3 channels, of uint8 or of floats from 0 to 1. Saturation and hue change nothing
    in an image of one channel. DALI on a CPU takes about the time of torchvision for contrast and
    hue, and several times as long for saturation.

    Attributes:
        brightness: The factor of brightness: a number a for [max(0, 1 - a), 1 + a], or [min,
            max]. At least 0; 1 changes nothing. By default it is not changed.
        contrast: The factor of contrast, likewise.
        saturation: The factor of saturation, likewise.
        hue: The turn of the hue in full turns: a number a for [-a, a], or [min, max]; -0.5 to
            0.5. By default it is not turned.
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
        """The range of each adjustment, without those that change nothing."""
        ranges = {name: getattr(self, name) for name in ADJUSTMENTS}
        none = {name: (0.0, 0.0) if name == "hue" else (1.0, 1.0) for name in ADJUSTMENTS}
        return {n: bounds for n, bounds in ranges.items() if bounds not in (None, none[n])}

    def sample(self, u: Uniforms) -> Sampled:
        """Draw factors, and an order.

        Returns:
            order: int32 (B, n), the sequence of the n adjustments that have an effect, by index.
            brightness, contrast, saturation, hue: float64 (B,), the factor of each adjustment that
                has an effect.
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
        branches = [partial(lower_adjustment, name=name, factor=p[name]) for name in names]
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
