"""The steps that do what classes of Albumentations do, and how their parameters are read.

`COUNTERPARTS` has a row for each class. A row's `read` returns the parameters of the step, or
raises NoCounterpartError for values that no step has: then a step `python` calls the transform.
tests/albumentations_adapter/test_counterparts.py compares the pixels of each row;
docs/tutorials/from_albumentations.md has the same table for users.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpupipe.torchvision_adapter.parameters import NoCounterpartError

_INTERPOLATIONS = {0: "nearest", 1: "bilinear"}
"""cv2.INTER_NEAREST and cv2.INTER_LINEAR."""
_BORDERS = {0: "constant", 1: "edge", 2: "symmetric", 4: "reflect"}
"""cv2.BORDER_CONSTANT, _REPLICATE, _REFLECT and _REFLECT_101, as torchvision calls them."""


@dataclass(frozen=True)
class Counterpart:
    """The step of a class.

    Attributes:
        step: The step's name.
        read: Returns the step's parameters but `p`, from a transform.
        has_p: Whether the step has a parameter `p` with the same meaning.
        moves: Whether the transform moves pixels, and with them masks.
    """

    step: str
    read: Callable[[Any], Mapping[str, Any]] = lambda transform: {}
    has_p: bool = True
    moves: bool = False


def _need(name: str, value: Any, *allowed: Any) -> None:
    if value not in allowed:
        raise NoCounterpartError(f"{name} is {value!r}")


def _read_size(transform: Any) -> dict[str, Any]:
    _need("pad_if_needed", transform.pad_if_needed, False)
    return {"size": [transform.height, transform.width]}


def _read_interpolation(transform: Any) -> dict[str, Any]:
    _need("area_for_downscale", getattr(transform, "area_for_downscale", None), None)
    _need("interpolation", transform.interpolation, *_INTERPOLATIONS)
    _need("mask_interpolation", transform.mask_interpolation, 0)
    return {"interpolation": _INTERPOLATIONS[transform.interpolation]}


def _read_resampling(transform: Any) -> dict[str, Any]:
    return {**_read_interpolation(transform), "antialias": False}


def _read_resize(transform: Any) -> dict[str, Any]:
    return {"size": [transform.height, transform.width], **_read_resampling(transform)}


def _read_resized_crop(transform: Any) -> dict[str, Any]:
    sizes = {"size": transform.size, "scale": transform.scale, "ratio": transform.ratio}
    return sizes | _read_resampling(transform)


def _read_fill(transform: Any) -> Any:
    """Return the fill of images, or also that of masks if it is not 0."""
    if transform.fill_mask is None or transform.fill_mask == 0:
        return transform.fill
    return {"image": transform.fill, "mask": transform.fill_mask}


def _read_pad(transform: Any) -> dict[str, Any]:
    _need("border_mode", transform.border_mode, *_BORDERS)
    mode = {"padding_mode": _BORDERS[transform.border_mode]}
    return {"padding": transform.padding, "fill": _read_fill(transform), **mode}


def _read_rotation(transform: Any) -> dict[str, Any]:
    _need("border_mode", transform.border_mode, 0)
    _need("crop_border", transform.crop_border, False)
    _need("rotate_method", transform.rotate_method, "largest_box")
    _need("interpolation", transform.interpolation, 1)
    fill = {"fill": _read_fill(transform)}
    return {"degrees": transform.limit, **_read_interpolation(transform), **fill}


def _read_brightness(transform: Any) -> dict[str, Any]:
    _need("ensure_safe_range", transform.ensure_safe_range, False)
    names = ("brightness_limit", "contrast_limit", "brightness_by_max")
    return {name: getattr(transform, name) for name in names}


def _read_dropout(transform: Any) -> dict[str, Any]:
    if isinstance(transform.fill, str):
        raise NoCounterpartError(f"fill is {transform.fill!r}")
    ranges = {name: getattr(transform, name) for name in ("hole_height_range", "hole_width_range")}
    fill = {"image": transform.fill, "mask": transform.fill_mask}
    return {
        "num_holes_range": transform.num_holes_range,
        **ranges,
        "fill": transform.fill if transform.fill_mask is None else fill,
    }


def _read_gray(transform: Any) -> dict[str, Any]:
    _need("method", transform.method, "weighted_average")
    _need("num_output_channels", transform.num_output_channels, 3)
    return {}


def _read_solarize(transform: Any) -> dict[str, Any]:
    low, high = transform.threshold_range
    if low != high:
        raise NoCounterpartError(
            f"threshold_range is {[low, high]}, and the step has one threshold"
        )
    return {"threshold": 255 * low}


def _read_posterize(transform: Any) -> dict[str, Any]:
    bits = transform.num_bits
    if not isinstance(bits, tuple) or bits[0] != bits[1]:
        raise NoCounterpartError(f"num_bits is {bits}, and the step has one number")
    return {"bits": bits[0]}


def _read_normalize(transform: Any) -> dict[str, Any]:
    _need("normalization", transform.normalization, "standard")
    _need("max_pixel_value", transform.max_pixel_value, 255)
    return {"mean": transform.mean, "std": transform.std}


COUNTERPARTS: dict[str, Counterpart] = {
    "HorizontalFlip": Counterpart("random_horizontal_flip", moves=True),
    "VerticalFlip": Counterpart("random_vertical_flip", moves=True),
    "Transpose": Counterpart("transpose", moves=True),
    "RandomRotate90": Counterpart("random_rotate_90", moves=True),
    "RandomCrop": Counterpart("random_crop", _read_size, has_p=False, moves=True),
    "CenterCrop": Counterpart("center_crop", _read_size, has_p=False, moves=True),
    "Pad": Counterpart("pad", _read_pad, has_p=False, moves=True),
    "Resize": Counterpart("resize", _read_resize, has_p=False, moves=True),
    "RandomResizedCrop": Counterpart(
        "random_resized_crop", _read_resized_crop, has_p=False, moves=True
    ),
    "Rotate": Counterpart("random_rotation", _read_rotation, has_p=False, moves=True),
    "CoarseDropout": Counterpart("coarse_dropout", _read_dropout, moves=True),
    "RandomBrightnessContrast": Counterpart("random_brightness_contrast", _read_brightness),
    "RandomGamma": Counterpart(
        "random_gamma", lambda t: {"gamma": [limit / 100 for limit in t.gamma_limit]}
    ),
    "InvertImg": Counterpart("random_invert"),
    "Solarize": Counterpart("random_solarize", _read_solarize),
    "Posterize": Counterpart("random_posterize", _read_posterize),
    "ToGray": Counterpart("random_grayscale", _read_gray),
    "ChannelShuffle": Counterpart("random_channel_permutation", has_p=False),
    "Normalize": Counterpart("normalize", _read_normalize, has_p=False),
}
"""The step of each class of Albumentations that has one."""
