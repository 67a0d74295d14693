"""Stages of gpupipe._kernels that change colours, and what torchvision makes of the same image."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.engines.cpu.color_stages import COLORS, GRAY, OF_FLOATS, TO_GRAY, TO_RGB

Change = tuple[Any, ...]
"""The name of a function of COLOR_OPS, "gray", "to_gray" or "to_rgb", and its values."""
Image = NDArray[np.uint8]
NUMBERS = COLORS | OF_FLOATS | {"gray": GRAY, "to_gray": TO_GRAY, "to_rgb": TO_RGB}


def shades(size: tuple[int, int], channels: int = 3) -> Image:
    """Shades with noise, all hues, one gray, and grays of many levels."""
    rng = np.random.default_rng(sum(size))
    rows, columns = np.mgrid[: size[0], : size[1]]
    planes = [rows * 255 / size[0], columns * 255 / size[1], (rows + columns) % 256]
    noisy = np.stack(planes[:channels], -1) + rng.normal(0, 20, (*size, channels))
    image = np.clip(noisy, 0, 255).astype(np.uint8)
    part = size[0] // 8
    image[:part] = 200
    image[part : 2 * part] = rng.integers(0, 256, (part, size[1], 1))
    return image


def as_planes(image: Any) -> Any:
    """The same image (H, W, C), whose channels lie one after the other in memory."""
    return np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)


def create_stage(*samples: Sequence[Change]) -> Any:
    """The stage of a batch. Each change is one of a single sample."""
    changes = []
    for row, of_sample in enumerate(samples):
        for name, *numbers in of_sample:
            function = NUMBERS[name], 0.0, 0.0, False
            values = (*(np.full(len(samples), float(number)) for number in numbers),)
            changes.append(((function,), None, values, np.arange(len(samples)) == row))
    tables = np.zeros((0, 256), np.uint8)
    return import_module("gpupipe._kernels").color_stage(tuple(changes), tables)


def change(image: Image, changes: Sequence[Change]) -> Image:
    """An image (H, W, C) after changes."""
    stage = create_stage(changes)
    return np.asarray(import_module("gpupipe._kernels").run_stage(stage, 0, image))


def reference(image: Image, changes: Sequence[Change]) -> Image:
    """The same by torchvision's functions, one after the other."""
    from torchvision.transforms.v2 import functional as F

    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)
    for name, *values in changes:
        if name in ("gray", "to_gray"):
            channels = 1 if name == "to_gray" else len(pixels)
            pixels = F.rgb_to_grayscale(pixels, channels)
        elif name == "to_rgb":
            pixels = F.grayscale_to_rgb(pixels)
        elif name == "gaussian_blur":
            pixels = color_ops.apply(name, pixels, [values[:2], values[2:]])
        elif name == "permute_channels":
            pixels = color_ops.apply(name, pixels, [values])
        else:
            pixels = color_ops.apply(
                name, pixels, [v if name in INTS else float(v) for v in values]
            )
    changed: Image = pixels.permute(1, 2, 0).numpy()
    return changed


INTS = ("posterize", "solarize_add")
LEVELS = (*INTS, "equalize")
"""Changes of uint8 alone."""


def draw_changes(
    rng: np.random.Generator, count: int, has_blur: bool = False, is_float: bool = False
) -> list[Change]:
    """Random changes that any image of uint8 or float32 can have."""
    factor, unit = rng.choice([0.0, 1.0, rng.uniform(0, 3)]), rng.uniform(-0.5, 0.5)
    draws: list[Change] = [
        *[(f"adjust_{n}", factor) for n in ("brightness", "contrast", "saturation", "sharpness")],
        ("adjust_hue", rng.choice([0.0, 0.5, unit])),
        ("posterize", int(rng.integers(9))),
        ("solarize", rng.choice([128.0, rng.uniform(-5, 255)])),
        ("solarize_add", int(rng.integers(129))),
        *[("invert",), ("autocontrast",), ("equalize",), ("gray",)],
        ("permute_channels", *rng.permutation(3).tolist()),
        *[(f"scale_and_shift{n}", factor, unit) for n in ("", "_by_mean")],
    ]
    if has_blur:
        draws.append(
            ("gaussian_blur", *rng.choice([1, 3, 5, 7, 9, 13], 2), *rng.uniform(0.1, 3, 2))
        )
    if is_float:
        draws = [("to_gray",), ("adjust_gamma", factor), *(d for d in draws if d[0] not in LEVELS)]
    return [draws[int(n)] for n in rng.integers(len(draws), size=count)]
