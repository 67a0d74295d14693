"""Builds the pipeline steps that replace timm's create_transform.

Source: timm/data/transforms_factory.py, timm/data/random_erasing.py. The functions take the
arguments of gpupipe.timm.create_loader by name, with timm's names and meaning.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Arguments = Mapping[str, Any]
Step = str | dict[str, Any]

DEFAULT_CROP_PCT = 0.875
"""timm's constant: the side of the crop in evaluation, as a fraction of the resized side."""
_BLUR = {"kernel_size": 23, "sigma": [0.1, 2.0]}
_ERASED = {"scale": [0.02, 1 / 3], "ratio": [0.3, 1 / 0.3]}
ERASING_VALUES: dict[str, Any] = {"const": 0.0, "pixel": "random"}
"""The `value` of random_erasing for timm's `re_mode`; the mode `rand` has none."""


def list_steps(a: Arguments, channels: int, erases: bool) -> list[Step]:
    """Return the pipeline, from `decode` to normalized floats.

    Args:
        a: The arguments of create_loader.
        channels: The number of channels of the images, 1 or 3.
        erases: Whether random_erasing is a step; False if timm's RandomErasing runs on batches.
    """
    mean, std = (_one_per_channel(a[name], channels) for name in ("mean", "std"))
    augments = a["is_training"] and not a["no_aug"]
    middle = _list_augmentation(a, mean) if augments else _list_plain(a)
    erasing = {"p": a["re_prob"], **_ERASED, "value": ERASING_VALUES.get(a["re_mode"])}
    return [
        {"decode": {"mode": "rgb" if channels == 3 else "gray"}},
        *middle,
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": {"mean": list(mean), "std": list(std)}},
        *([{"random_erasing": erasing}] if augments and erases and a["re_prob"] > 0 else []),
    ]


def _one_per_channel(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """Return one value per channel; if the counts differ, repeat the average, as timm does."""
    values = tuple(float(value) for value in values)
    return values if len(values) == channels else (sum(values) / len(values),) * channels


def _read_size(a: Arguments) -> int | list[int]:
    """Return the output's size: the side of a square, or [height, width], in pixels."""
    size = a["input_size"]
    return size if isinstance(size, int) else [size[-2], size[-1]]


def _list_plain(a: Arguments) -> list[Step]:
    """Return the steps of evaluation, and of training with `no_aug`."""
    size, mode = _read_size(a), a["interpolation"]
    resized: int | list[int] = size
    if a["is_training"]:
        mode = "bilinear" if mode == "random" else mode
    else:
        ratio = a["crop_pct"] or DEFAULT_CROP_PCT
        sides = [size, size] if isinstance(size, int) else size
        larger = [math.floor(side / ratio) for side in sides]
        resized = larger if a["crop_mode"] == "squash" else larger[0]
    return [{"resize": {"size": resized, "interpolation": mode}}, {"center_crop": {"size": size}}]


def _list_augmentation(a: Arguments, mean: Sequence[float]) -> list[Step]:
    steps = [_make_crop(a)]
    if a["hflip"] > 0:
        steps.append({"random_horizontal_flip": {"p": a["hflip"]}})
    if a["vflip"] > 0:
        steps.append({"random_vertical_flip": {"p": a["vflip"]}})
    if a["auto_augment"]:
        fill = [min(255, round(255 * value)) for value in mean]
        mode = "nearest" if a["interpolation"] == "nearest" else "bilinear"
        policy = {"policy": a["auto_augment"], "fill": fill, "interpolation": mode}
        steps.append({"timm_augment": policy})
    steps += _list_jitter(a)
    if a["grayscale_prob"]:
        steps.append({"random_grayscale": {"p": a["grayscale_prob"]}})
    if a["gaussian_blur_prob"]:
        steps.append(_apply_with(a["gaussian_blur_prob"], {"gaussian_blur": _BLUR}))
    return steps


def _make_crop(a: Arguments) -> Step:
    window = {
        "size": _read_size(a),
        "scale": list(a["scale"] or (0.08, 1.0)),
        "ratio": list(a["ratio"] or (3 / 4, 4 / 3)),
    }
    modes = ["bilinear", "bicubic"] if a["interpolation"] == "random" else [a["interpolation"]]
    crops: list[Step] = [
        {"random_resized_crop": {**window, "interpolation": mode}} for mode in modes
    ]
    return crops[0] if len(crops) == 1 else {"random_choice": {"transforms": crops}}


def _list_jitter(a: Arguments) -> list[Step]:
    jitter, probability = a["color_jitter"], a["color_jitter_prob"]
    # timm leaves the jitter out if there is a policy, except for 3a.
    if jitter is None or (a["auto_augment"] and "3a" not in a["auto_augment"]):
        return []
    values = (float(jitter),) * 3 if isinstance(jitter, (int, float)) else tuple(jitter)
    if not any(values):
        return []
    names = ("brightness", "contrast", "saturation", "hue")
    step: Step = {"color_jitter": dict(zip(names, values, strict=False))}
    return [step] if probability is None else [_apply_with(probability, step)]


def _apply_with(p: float, step: Step) -> Step:
    return {"random_apply": {"p": p, "transforms": [step]}}
