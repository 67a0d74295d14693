"""The steps that do what timm's create_transform does.

Source: timm/data/transforms_factory.py, timm/data/random_erasing.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Sizes = int | tuple[int, int]
Step = str | dict[str, Any]

DEFAULT_CROP_PCT = 0.875
"""timm's DEFAULT_CROP_PCT."""
_BLUR_KERNEL = 23
_BLUR_SIGMA = [0.1, 2.0]
_ERASED_AREA = [0.02, 1 / 3]
_ERASED_RATIO = [0.3, 1 / 0.3]
ERASING_VALUES: dict[str, Any] = {"const": 0.0, "pixel": "random"}
"""The `value` of random_erasing for timm's `re_mode`; the mode `rand` has none."""


@dataclass(frozen=True)
class TransformArguments:
    """The arguments of timm's create_transform, with its names and meaning.

    Attributes:
        size: The output in pixels: the side of a square, or (height, width).
        channels: 1 or 3.
        mean: One number for each channel.
        std: One number for each channel.
        re_prob: 0 if timm's own RandomErasing runs on the batches instead.
    """

    size: Sizes
    channels: int
    mean: Sequence[float]
    std: Sequence[float]
    is_training: bool
    no_aug: bool
    re_prob: float
    re_mode: str
    scale: Sequence[float] | None
    ratio: Sequence[float] | None
    hflip: float
    vflip: float
    color_jitter: float | Sequence[float] | None
    color_jitter_prob: float | None
    grayscale_prob: float
    gaussian_blur_prob: float
    auto_augment: str | None
    interpolation: str
    crop_pct: float | None
    crop_mode: str | None

    def list_steps(self) -> list[Step]:
        """Return the pipeline, from `decode` to normalized floats."""
        middle = (
            self._list_evaluation()
            if not self.is_training
            else self._list_without_augmentation()
            if self.no_aug
            else self._list_training()
        )
        erasing = self._list_erasing() if self.is_training and not self.no_aug else []
        return [
            {"decode": {"mode": "rgb" if self.channels == 3 else "gray"}},
            *middle,
            {"to_dtype": {"dtype": "float32", "scale": True}},
            {"normalize": {"mean": list(self.mean), "std": list(self.std)}},
            *erasing,
        ]

    def _list_without_augmentation(self) -> list[Step]:
        mode = "bilinear" if self.interpolation == "random" else self.interpolation
        return [_resize(self.size, mode), {"center_crop": {"size": _to_list(self.size)}}]

    def _list_evaluation(self) -> list[Step]:
        ratio = self.crop_pct or DEFAULT_CROP_PCT
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        resized = math.floor(height / ratio), math.floor(width / ratio)
        size = resized if self.crop_mode == "squash" else resized[0]
        crop: Step = {"center_crop": {"size": _to_list(self.size)}}
        return [_resize(size, self.interpolation), crop]

    def _list_training(self) -> list[Step]:
        steps = [self._make_crop()]
        if self.hflip > 0:
            steps.append({"random_horizontal_flip": {"p": self.hflip}})
        if self.vflip > 0:
            steps.append({"random_vertical_flip": {"p": self.vflip}})
        if self.auto_augment:
            fill = [min(255, round(255 * value)) for value in self.mean]
            mode = "nearest" if self.interpolation == "nearest" else "bilinear"
            policy = {"policy": self.auto_augment, "fill": fill, "interpolation": mode}
            steps.append({"timm_augment": policy})
        steps += self._list_jitter()
        if self.grayscale_prob:
            steps.append({"random_grayscale": {"p": self.grayscale_prob}})
        if self.gaussian_blur_prob:
            blur = {"gaussian_blur": {"kernel_size": _BLUR_KERNEL, "sigma": _BLUR_SIGMA}}
            steps.append(_apply_with(self.gaussian_blur_prob, blur))
        return steps

    def _make_crop(self) -> Step:
        scale, ratio = self.scale or (0.08, 1.0), self.ratio or (3 / 4, 4 / 3)
        modes = ["bilinear", "bicubic"] if self.interpolation == "random" else [self.interpolation]
        crops: list[Step] = [
            {
                "random_resized_crop": {
                    "size": _to_list(self.size),
                    "scale": list(scale),
                    "ratio": list(ratio),
                    "interpolation": mode,
                }
            }
            for mode in modes
        ]
        return crops[0] if len(crops) == 1 else {"random_choice": {"transforms": crops}}

    def _list_jitter(self) -> list[Step]:
        jitter = self.color_jitter
        # timm leaves the jitter out beside a policy, other than 3a.
        if jitter is None or (self.auto_augment and "3a" not in self.auto_augment):
            return []
        values = (float(jitter),) * 3 if isinstance(jitter, (int, float)) else tuple(jitter)
        if not any(values):
            return []
        names = ("brightness", "contrast", "saturation", "hue")
        step: Step = {"color_jitter": dict(zip(names, values, strict=False))}
        prob = self.color_jitter_prob
        return [step] if prob is None else [_apply_with(prob, step)]

    def _list_erasing(self) -> list[Step]:
        if self.re_prob <= 0:
            return []
        value = ERASING_VALUES[self.re_mode]
        window = {"p": self.re_prob, "scale": _ERASED_AREA, "ratio": _ERASED_RATIO, "value": value}
        return [{"random_erasing": window}]


def _resize(size: Sizes, interpolation: str) -> Step:
    return {"resize": {"size": _to_list(size), "interpolation": interpolation}}


def _apply_with(p: float, step: Step) -> Step:
    return {"random_apply": {"p": p, "transforms": [step]}}


def _to_list(size: Sizes) -> int | list[int]:
    return size if isinstance(size, int) else list(size)
