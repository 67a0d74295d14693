"""torchvision's functions that change colours, as the primitive `color` takes them."""

from __future__ import annotations

LUMA = (0.2989, 0.587, 0.114)
"""torchvision's weights of red, green and blue (v2.functional.rgb_to_grayscale).

They sum to 0.9999, and torchvision truncates the luma of uint8.
"""

COLOR_OPS: dict[str, str] = {
    "invert": "no values",
    "posterize": "bits: int32 (B,), 0 to 8; uint8 only",
    "solarize": "threshold: float64 (B,), in units of the pixels",
    "solarize_add": "levels: int32 (B,), 0 to 128, added to values below 128; uint8 only; timm's",
    "autocontrast": "no values",
    "equalize": "no values; uint8 only",
    "adjust_brightness": "factor: float64 (B,), 0 or more; 1 changes nothing",
    "adjust_contrast": "factor: float64 (B,), 0 or more; 1 changes nothing",
    "adjust_saturation": "factor: float64 (B,), 0 or more; 1 changes nothing",
    "adjust_hue": "factor: float64 (B,), -0.5 to 0.5 of a full turn",
    "adjust_sharpness": "factor: float64 (B,), 0 or more; 1 changes nothing",
    "gaussian_blur": "kernel_size: int32 (B, 2), odd; sigma: float64 (B, 2); both [x, y] in pixels",
    "jpeg": "quality: int32 (B,), 1 to 100; uint8 only",
    "permute_channels": "permutation: int32 (B, channels); channel n of the output is channel "
    "permutation[n]",
}
"""What `Primitives.color` takes: names of torchvision.transforms.v2.functional, and their values.

Floats are in 0..1, and results are clamped to the range of the dtype. As in torchvision, a
saturation, hue or permutation changes nothing in images of one channel. A back end may differ from
torchvision by one level of uint8; by more in single pixels, for a saturation above 2.
"""
