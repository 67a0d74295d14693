"""timm's operations: converts each name and level to an operation and value of policy_ops.py.

Source: LEVEL_TO_ARG and AugmentOp in timm/data/auto_augment.py. A level is 0 to 10, or to `mmax`.
timm applies its operations with PIL; gpupipe applies those of policy_ops.py. TranslateXRelMix and
TranslateYRelMix are timm's TranslateXRel and TranslateYRel with the `translate_pct` of 0.3 that
create_transform in timm/data/transforms_factory.py sets for augmix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.policy_ops import OPS
from gpupipe.pipeline.step import Sampled

Floats = NDArray[np.float64]
Value = Callable[[Floats, Floats, Floats], Any]
"""Computes values from arrays of level / 10, drawn signs (-1 or 1), and uniform draws."""

UNIFORM = float("inf")
"""As the standard deviation of levels, it means: draw levels uniformly."""
MAX_LEVEL = 10.0
_MAX_THRESHOLD = 255.0


def _enhance(f: Floats, sign: Floats, u: Floats) -> Floats:
    return f * 1.8 + 0.1


def _enhance_increasing(f: Floats, sign: Floats, u: Floats) -> Any:
    return np.maximum(0.1, 1.0 + sign * (f * 0.9))


def _solarize(f: Floats, sign: Floats, u: Floats) -> Any:
    return np.minimum(np.floor(f * 256.0), 256.0)


_FUNCTIONS: dict[str, tuple[str, Value]] = {
    "AutoContrast": ("AutoContrast", lambda f, sign, u: 0.0 * f),
    "Equalize": ("Equalize", lambda f, sign, u: 0.0 * f),
    "Invert": ("Invert", lambda f, sign, u: 0.0 * f),
    "Rotate": ("Rotate", lambda f, sign, u: sign * f * 30.0),
    "Posterize": ("Posterize", lambda f, sign, u: np.floor(f * 4.0)),
    "PosterizeIncreasing": ("Posterize", lambda f, sign, u: 4.0 - np.floor(f * 4.0)),
    "PosterizeOriginal": ("Posterize", lambda f, sign, u: np.floor(f * 4.0) + 4.0),
    "Solarize": ("Solarize", _solarize),
    "SolarizeIncreasing": ("Solarize", lambda f, sign, u: 256.0 - _solarize(f, sign, u)),
    "SolarizeAdd": ("SolarizeAdd", lambda f, sign, u: np.minimum(np.floor(f * 110.0), 128.0)),
    **{name: (name, _enhance) for name in ("Color", "Contrast", "Brightness", "Sharpness")},
    **{
        f"{name}Increasing": (name, _enhance_increasing)
        for name in ("Color", "Contrast", "Brightness", "Sharpness")
    },
    "ShearX": ("ShearX", lambda f, sign, u: sign * f * 0.3),
    "ShearY": ("ShearY", lambda f, sign, u: sign * f * 0.3),
    "TranslateXRel": ("TranslateXRel", lambda f, sign, u: sign * f * 0.45),
    "TranslateYRel": ("TranslateYRel", lambda f, sign, u: sign * f * 0.45),
    "TranslateXRelMix": ("TranslateXRel", lambda f, sign, u: sign * f * 0.3),
    "TranslateYRelMix": ("TranslateYRel", lambda f, sign, u: sign * f * 0.3),
    "Desaturate": ("Color", lambda f, sign, u: 0.5 - 0.5 * np.clip(f, 0.0, 1.0)),
    "GaussianBlur": ("GaussianBlur", lambda f, sign, u: 0.1 + 1.9 * np.clip(f, 0.0, 1.0)),
    "GaussianBlurRand": (
        "GaussianBlur",
        lambda f, sign, u: 0.1 + u * (2.0 * np.clip(f, 0.0, 1.0) - 0.1),
    ),
}


def op_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names in policy_ops.py for timm's operation names, each once."""
    return tuple(dict.fromkeys(_FUNCTIONS[name][0] for name in names))


def draw_levels(magnitude: Any, std: float, largest: float, u: Floats) -> Any:
    """Draw levels around a magnitude, clipped to 0 and `largest`.

    Args:
        magnitude: The magnitude, a number or an array (...).
        std: The standard deviation. With 0 all levels are `magnitude`; with UNIFORM they are
            uniform from 0 to `magnitude`.
        largest: The largest level.
        u: Uniform draws, (2, ...).
    """
    if std == UNIFORM:
        levels = u[0] * magnitude
    else:
        normal = np.sqrt(-2.0 * np.log(1.0 - u[0])) * np.cos(2.0 * np.pi * u[1])
        levels = magnitude + std * normal
    return np.clip(levels, 0.0, largest)


def get_ops(names: Sequence[str], index: Any, level: Any, u: Floats) -> Sampled:
    """Return the arrays `op` and `value` of drawn operations.

    Args:
        names: timm's names of the operations.
        index: The drawn operations, as positions in `names`.
        level: The level of each operation, of the same shape.
        u: Uniform draws, (2, ...): for the sign, and for operations that draw their value.

    Returns:
        op: int32, the number of each operation in OPS.
        value: float64, the value of each operation: see policy_ops.
    """
    op = np.zeros(index.shape, np.int32)
    value = np.zeros(index.shape)
    sign = np.where(u[0] > 0.5, -1.0, 1.0)
    for position, name in enumerate(names):
        own, function = _FUNCTIONS[name]
        is_drawn = index == position
        op[is_drawn] = OPS.index(own)
        values = function(np.broadcast_to(level, index.shape) / MAX_LEVEL, sign, u[1])
        value = np.where(is_drawn, values, value)
    # torchvision refuses a threshold above 255, which no pixel reaches.
    is_idle = (op == OPS.index("Solarize")) & (value > _MAX_THRESHOLD)
    return {"op": np.where(is_idle, 0, op).astype(np.int32), "value": value}
