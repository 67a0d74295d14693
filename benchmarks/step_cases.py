"""The steps that benchmarks/steps.py measures, and what the other libraries call them.

Plain data: the environments of AlbumentationsX and Albumentations have no gpupipe. Transforms that
draw take the same ranges in every library where their parameters allow that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Call = tuple[str, dict[str, Any]]
"""A transform's class and its arguments."""

SIDE = 512
"""Height and width of the photographs in pixels."""


@dataclass(frozen=True)
class Case:
    """A step, and the transforms of other libraries that do the same.

    Attributes:
        step: gpupipe's step, as in YAML.
        torchvision: The transforms of `torchvision.transforms.v2`, one after the other.
        albumentations: Transforms of Albumentations 2.0.8, of which the fastest counts.
        albumentationsx: Those of AlbumentationsX; None if they are the same. Its ElasticTransform
            moves a grid of 7 x 7 points, which is another transform, and does not count.
        side: Height and width of the result.
        bound: The largest ratio of gpupipe to the best library.
    """

    step: dict[str, Any]
    torchvision: Sequence[Call] = ()
    albumentations: Sequence[Call] = ()
    albumentationsx: Sequence[Call] | None = None
    side: int = SIDE
    bound: float = 1.0

    def calls(self, library: str) -> Sequence[Sequence[Call]]:
        """Return the candidates of a library: chains of transforms, of which the fastest counts."""
        if library == "torchvision":
            return [self.torchvision] if self.torchvision else []
        is_own = library == "albumentationsx" and self.albumentationsx is not None
        return [[call] for call in (self.albumentationsx if is_own else self.albumentations) or ()]


_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_SHARES = [0.04, 0.04]
_NO_CHANGE: dict[str, Any] = {
    "brightness": (1.0, 1.0),
    "contrast": (1.0, 1.0),
    "saturation": (1.0, 1.0),
    "hue": (0.0, 0.0),
}
RENAMED = {
    name: f"{name.removesuffix('_limit')}_range"
    for name in """brightness contrast saturation hue brightness_limit contrast_limit
    hue_shift_limit sat_shift_limit val_shift_limit blur_limit sigma_limit gamma_limit alpha
    lightness""".split()
} | {"limit": "angle_range"}
"""AlbumentationsX's names of arguments that Albumentations 2.0.8 calls otherwise."""


def _jitter(**changes: tuple[float, float]) -> Call:
    """Return Albumentations' ColorJitter with `changes` alone."""
    return "ColorJitter", _NO_CHANGE | changes


def _shift(hue: float = 0, saturation: float = 0) -> Call:
    """Return Albumentations' HueSaturationValue, which adds in 8 bits."""
    return "HueSaturationValue", {
        "hue_shift_limit": (-hue, hue),
        "sat_shift_limit": (-saturation, saturation),
        "val_shift_limit": (0, 0),
    }


def _brighten(brightness: float = 0.0, contrast: float = 0.0) -> Call:
    """Return Albumentations' RandomBrightnessContrast, which adds in place of multiplying."""
    return "RandomBrightnessContrast", {
        "brightness_limit": (-brightness, brightness),
        "contrast_limit": (-contrast, contrast),
    }


_ALL_FOUR = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
_ALL_FOUR_RANGES: dict[str, tuple[float, float]] = {
    "brightness": (0.6, 1.4),
    "contrast": (0.6, 1.4),
    "saturation": (0.6, 1.4),
    "hue": (-0.1, 0.1),
}
_DISTORT = {
    "brightness_range": (0.875, 1.125),
    "contrast_range": (0.5, 1.5),
    "saturation_range": (0.5, 1.5),
    "hue_range": (-0.05, 0.05),
}
_HOLES = {
    "num_holes_range": (1, 2),
    "hole_height_range": (0.1, 0.2),
    "hole_width_range": (0.1, 0.2),
}

CASES: dict[str, Case] = {
    "color_jitter": Case(
        {"color_jitter": _ALL_FOUR},
        [("ColorJitter", _ALL_FOUR)],
        [_jitter(**_ALL_FOUR_RANGES)],
        bound=0.5,
    ),
    "brightness": Case(
        {"color_jitter": {"brightness": 0.2}},
        [("ColorJitter", {"brightness": 0.2})],
        [_jitter(brightness=(0.8, 1.2)), _brighten(brightness=0.2)],
    ),
    "contrast": Case(
        {"color_jitter": {"contrast": 0.2}},
        [("ColorJitter", {"contrast": 0.2})],
        [_jitter(contrast=(0.8, 1.2)), _brighten(contrast=0.2)],
    ),
    "brightness and contrast": Case(
        {"color_jitter": {"brightness": 0.2, "contrast": 0.2}},
        [("ColorJitter", {"brightness": 0.2, "contrast": 0.2})],
        [_jitter(brightness=(0.8, 1.2), contrast=(0.8, 1.2)), _brighten(0.2, 0.2)],
    ),
    "saturation": Case(
        {"color_jitter": {"saturation": 0.4}},
        [("ColorJitter", {"saturation": 0.4})],
        [_jitter(saturation=(0.6, 1.4)), _shift(saturation=30)],
    ),
    "hue": Case(
        {"color_jitter": {"hue": 0.1}},
        [("ColorJitter", {"hue": 0.1})],
        [_jitter(hue=(-0.1, 0.1)), _shift(hue=20)],
    ),
    "hue and saturation": Case(
        {"color_jitter": {"hue": 0.1, "saturation": 0.4}},
        [("ColorJitter", {"hue": 0.1, "saturation": 0.4})],
        [_jitter(hue=(-0.1, 0.1), saturation=(0.6, 1.4)), _shift(20, 30)],
        bound=0.5,
    ),
    "random_photometric_distort": Case(
        {"random_photometric_distort": {"p": 1}},
        [("RandomPhotometricDistort", {"p": 1})],
        albumentationsx=[("PhotoMetricDistort", {**_DISTORT, "distort_p": 1})],
    ),
    "grayscale to 3": Case(
        {"random_grayscale": {"p": 1}},
        [("Grayscale", {"num_output_channels": 3})],
        [("ToGray", {})],
    ),
    "random_posterize": Case(
        {"random_posterize": {"bits": 4, "p": 1}},
        [("RandomPosterize", {"bits": 4, "p": 1})],
        [("Posterize", {"num_bits": (4, 4)})],
    ),
    "random_solarize": Case(
        {"random_solarize": {"threshold": 128, "p": 1}},
        [("RandomSolarize", {"threshold": 128, "p": 1})],
        [("Solarize", {"threshold_range": (0.5, 0.5)})],
    ),
    "random_invert": Case(
        {"random_invert": {"p": 1}}, [("RandomInvert", {"p": 1})], [("InvertImg", {})]
    ),
    "random_gamma": Case(
        {"random_gamma": {"gamma": [0.8, 1.2], "p": 1}},
        albumentations=[("RandomGamma", {"gamma_limit": (80, 120)})],
    ),
    "random_autocontrast": Case(
        {"random_autocontrast": {"p": 1}},
        [("RandomAutocontrast", {"p": 1})],
        [("AutoContrast", {"method": "pil"}), ("AutoContrast", {"method": "cdf"})],
    ),
    "random_equalize": Case(
        {"random_equalize": {"p": 1}},
        [("RandomEqualize", {"p": 1})],
        [("Equalize", {"mode": "cv"}), ("Equalize", {"mode": "pil"})],
    ),
    "random_adjust_sharpness": Case(
        {"random_adjust_sharpness": {"sharpness_factor": 1.5, "p": 1}},
        [("RandomAdjustSharpness", {"sharpness_factor": 1.5, "p": 1})],
        [("Sharpen", {"alpha": (0.2, 0.5), "lightness": (0.5, 1.0)})],
    ),
    "random_channel_permutation": Case(
        {"random_channel_permutation": {}},
        [("RandomChannelPermutation", {})],
        [("ChannelShuffle", {})],
    ),
    "gaussian_blur 5": Case(
        {"gaussian_blur": {"kernel_size": 5, "sigma": [2, 2]}},
        [("GaussianBlur", {"kernel_size": 5, "sigma": (2.0, 2.0)})],
        [("GaussianBlur", {"blur_limit": (5, 5), "sigma_limit": (2.0, 2.0)})],
    ),
    "gaussian_blur 23": Case(
        {"gaussian_blur": {"kernel_size": 23, "sigma": [0.1, 2]}},
        [("GaussianBlur", {"kernel_size": 23, "sigma": (0.1, 2.0)})],
        [("GaussianBlur", {"blur_limit": (23, 23), "sigma_limit": (0.1, 2.0)})],
    ),
    "gaussian_noise": Case(
        {"gaussian_noise": {"sigma": 0.1}},
        albumentations=[("GaussNoise", {"std_range": (0.1, 0.1), "per_channel": True})],
    ),
    "jpeg 50 to 90": Case(
        {"jpeg": {"quality": [50, 90]}},
        [("JPEG", {"quality": (50, 90)})],
        [("ImageCompression", {"quality_range": (50, 90)})],
    ),
    "elastic_transform": Case(
        {"elastic_transform": {}},
        [("ElasticTransform", {})],
        [("ElasticTransform", {"alpha": 50, "sigma": 5})],
        albumentationsx=(),
    ),
    "random_horizontal_flip": Case(
        {"random_horizontal_flip": {"p": 1}},
        [("RandomHorizontalFlip", {"p": 1})],
        [("HorizontalFlip", {})],
    ),
    "random_vertical_flip": Case(
        {"random_vertical_flip": {"p": 1}},
        [("RandomVerticalFlip", {"p": 1})],
        [("VerticalFlip", {})],
    ),
    "pad 10": Case(
        {"pad": {"padding": 10}}, [("Pad", {"padding": 10})], [("Pad", {"padding": 10})], side=532
    ),
    "pad 10, reflect": Case(
        {"pad": {"padding": 10, "padding_mode": "reflect"}},
        [("Pad", {"padding": 10, "padding_mode": "reflect"})],
        [("Pad", {"padding": 10, "border_mode": 4})],
        side=532,
    ),
    "random_crop 224": Case(
        {"random_crop": {"size": 224}},
        [("RandomCrop", {"size": 224})],
        [("RandomCrop", {"height": 224, "width": 224})],
        side=224,
    ),
    "center_crop 224": Case(
        {"center_crop": {"size": 224}},
        [("CenterCrop", {"size": 224})],
        [("CenterCrop", {"height": 224, "width": 224})],
        side=224,
    ),
    "resize 256": Case(
        {"resize": {"size": [256, 256]}},
        [("Resize", {"size": (256, 256)})],
        [("Resize", {"height": 256, "width": 256})],
        side=256,
    ),
    "random_resized_crop 224": Case(
        {"random_resized_crop": {"size": 224}},
        [("RandomResizedCrop", {"size": 224})],
        [("RandomResizedCrop", {"size": (224, 224)})],
        side=224,
    ),
    "random_rotation": Case(
        {"random_rotation": {"degrees": 45, "interpolation": "bilinear"}},
        [("RandomRotation", {"degrees": 45, "interpolation": "bilinear"})],
        [("Rotate", {"limit": (-45, 45)})],
    ),
    "random_affine": Case(
        {
            "random_affine": {
                "degrees": 25,
                "translate": _SHARES,
                "scale": [0.8, 1.2],
                "shear": 10,
                "interpolation": "bilinear",
            }
        },
        [
            (
                "RandomAffine",
                {
                    "degrees": 25,
                    "translate": _SHARES,
                    "scale": [0.8, 1.2],
                    "shear": 10,
                    "interpolation": "bilinear",
                },
            )
        ],
        [
            (
                "Affine",
                {
                    "rotate": (-25, 25),
                    "translate_percent": (-0.04, 0.04),
                    "scale": (0.8, 1.2),
                    "shear": (-10, 10),
                },
            )
        ],
    ),
    "random_perspective": Case(
        {"random_perspective": {"distortion_scale": 0.2, "p": 1}},
        [("RandomPerspective", {"distortion_scale": 0.2, "p": 1})],
        [("Perspective", {"scale": (0.05, 0.1)})],
    ),
    "random_erasing": Case(
        {"random_erasing": {"p": 1}}, [("RandomErasing", {"p": 1})], [("Erasing", {})]
    ),
    "coarse_dropout": Case(
        {"coarse_dropout": {"p": 1}},
        albumentations=[("CoarseDropout", {**_HOLES, "fill": 0})],
    ),
    "random_brightness_contrast": Case(
        {"random_brightness_contrast": {"p": 1}}, albumentations=[_brighten(0.2, 0.2)]
    ),
    "random_rotate_90": Case(
        {"random_rotate_90": {"p": 1}}, albumentations=[("RandomRotate90", {})]
    ),
    "transpose": Case({"transpose": {"p": 1}}, albumentations=[("Transpose", {})]),
    "normalize": Case(
        {"normalize": {"mean": _MEAN, "std": _STD}},
        [
            ("ToDtype", {"dtype": "float32", "scale": True}),
            ("Normalize", {"mean": _MEAN, "std": _STD}),
        ],
        [("Normalize", {"mean": tuple(_MEAN), "std": tuple(_STD)})],
    ),
    "auto_augment": Case({"auto_augment": {}}, [("AutoAugment", {})]),
    "rand_augment": Case({"rand_augment": {}}, [("RandAugment", {})]),
    "trivial_augment_wide": Case({"trivial_augment_wide": {}}, [("TrivialAugmentWide", {})]),
    "aug_mix": Case({"aug_mix": {}}, [("AugMix", {})]),
}
