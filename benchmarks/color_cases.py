"""The cases of benchmarks/steps.py that change colours, and those that degrade an image."""

from typing import Any

from step_case import Call, Case

_NO_CHANGE: dict[str, Any] = {
    "brightness": (1.0, 1.0),
    "contrast": (1.0, 1.0),
    "saturation": (1.0, 1.0),
    "hue": (0.0, 0.0),
}


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

COLOR_CASES: dict[str, Case] = {
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
    "random_brightness_contrast": Case(
        {"random_brightness_contrast": {"p": 1}}, albumentations=[_brighten(0.2, 0.2)]
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
    "grayscale to 1": Case(
        {"grayscale": {}},
        [("Grayscale", {"num_output_channels": 1})],
        [("ToGray", {"num_output_channels": 1})],
        channels=(3, 1),
    ),
    "rgb": Case({"rgb": {}}, [("RGB", {})], [("ToRGB", {})], channels=(1, 3)),
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
}
