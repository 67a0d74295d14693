"""Kernels that mix the channels of a pixel or neighbouring pixels, with OpenCV, on uint8.

They have torchvision's arithmetic in fewer passes: they compute in float32, and truncate values
where torchvision does. The kernels of `opencv_levels` change each value by itself.
"""

from collections.abc import Callable, Collection

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import LUMA
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.delivery import CONVERTED, end_with_delivery, find_planes
from gpupipe.engines.cpu.opencv_lookup import IDENTITY, look_up
from gpupipe.engines.cpu.patterns import Match
from gpupipe.engines.cpu.pixels import (
    MAX_OPENCV_CHANNELS,
    Array,
    Pixels,
    as_array,
    as_packed,
    scratch,
    with_channels,
)
from gpupipe.engines.cpu.program import Kernel, Rule, single

RGB, FULL = 3, 255
_CIRCLE = 360  # degrees
_BELOW_ZERO, _BELOW_CIRCLE = (float(np.nextafter(np.float32(n), np.float32(-1))) for n in (0, 360))
"""The next lower numbers of float32. cv2.threshold tells which numbers are larger."""
TRUNCATE = 0.49995
"""What is subtracted before OpenCV rounds, so that fractions are dropped.

Fractions of the luma are multiples of 1 / 10,000.
"""
_LUMA = np.array([LUMA], np.float32)
_TO_GRAYSCALE = np.array([[*LUMA, -TRUNCATE]])
_PIXELS_APART = 7
"""See `estimate_mean`."""
_SHARES = LUMA[1] / (LUMA[0] + LUMA[1]), LUMA[2] / sum(LUMA)
"""LUMA as a running mean: mean = (1 - share) * mean + share * plane, from the first plane."""
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""The smoothing filter of adjust_sharpness, which blends an image with the smoothed image."""
_MANY = 1 << 16
"""Of more values torch converts faster than NumPy. It takes 5 us more for each call."""
ALL_LEVELS = IDENTITY[None]
_DIFFERENCES = np.arange(1, FULL + 1)
_LEVELS = torch.arange(FULL + 1, dtype=torch.float32)


def split(pixels: Pixels, out: Array | None = None) -> Array:
    """Return the planes of an image of uint8, (C, H, W), copied unless the image is in planes.

    `out` takes the copy; None for scratch memory.
    """
    planes = as_array(pixels).transpose(2, 0, 1)
    if planes.flags.c_contiguous:
        return planes
    copied = scratch.take(planes.shape) if out is None else out
    if len(planes) > MAX_OPENCV_CHANNELS:
        np.copyto(copied, planes)
    else:
        cv2.split(as_packed(pixels), list(copied))
    return copied


def _run_saturation(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with its grayscale image."""
    planes = split(pixels)
    if len(planes) == 1:
        return pixels
    blended = scratch.take(planes.shape)
    _blend_as_torch(planes, float(op.values[0][row]), to_grayscale(planes), blended)
    return blended.transpose(1, 2, 0)


def _blend_as_torch(planes: Array, factor: float, gray: Array, out: Array) -> None:
    """Blend in OpenCV, and lower those levels that torch lowers.

    A sum is near a whole number where it was one before rounding: there, OpenCV's may be another.
    That is so for some differences to the gray level, or for values that are the gray level.
    """
    parts = factor * _DIFFERENCES
    if factor > 2 or np.abs(parts - np.rint(parts)).min() < 1 - 2 * TRUNCATE:
        _blend_in_torch(planes, factor, gray, out)
        return
    _blend(planes, factor, gray, out)
    sums = (_LEVELS * factor).add_(_LEVELS, alpha=1 - factor)
    lowered = torch.lt(sums, _LEVELS).numpy().view(np.uint8)
    if lowered.any():
        mask = scratch.take(planes.shape)
        np.equal(planes, gray, out=mask.view(np.bool_))
        np.bitwise_and(mask, look_up(gray, lowered, scratch.take(gray.shape)), out=mask)
        np.subtract(out, mask, out=out)


def _blend(planes: Array, factor: float, other: Array, out: Array) -> None:
    """Compute factor * plane + (1 - factor) * other of uint8, clamped to 0..255 and truncated."""
    for plane, blended in zip(planes, out, strict=True):
        # OpenCV rounds to the nearest value.
        cv2.addWeighted(plane, factor, other, 1 - factor, -TRUNCATE, dst=blended)


def _blend_in_torch(planes: Array, factor: float, other: Array, out: Array) -> None:
    """Blend as torchvision does: torch rounds once where it multiplies and adds."""
    sums, others = (torch.from_numpy(_to_float(values)) for values in (planes, other))
    sums.mul_(factor).add_(others, alpha=1 - factor)
    if factor > 1:
        sums.clamp_(0, FULL)
    np.copyto(out, sums.numpy(), casting="unsafe")  # torch takes seven times as long


def _to_float(array: Array) -> NDArray[np.float32]:
    """Convert uint8 to float32, in scratch memory."""
    floats = _take_floats(array.shape)
    if array.size > _MANY and array.flags.writeable:
        torch.from_numpy(floats).copy_(torch.from_numpy(array))
    else:
        np.copyto(floats, array)
    return floats


def _take_floats(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return an uninitialized array in scratch memory."""
    return scratch.take((*shape, 4)).view(np.float32)[..., 0]


def to_grayscale(planes: Array, out: Array | None = None) -> Array:
    """Convert the planes of an image of uint8, (3, H, W), to grayscale (H, W), without fractions.

    A running mean of the planes takes a quarter of the time of cv2.transform. `out` takes the new
    image; None for scratch memory.
    """
    luma = _to_float(planes[0])
    for plane, share in zip(planes[1:], _SHARES, strict=True):
        cv2.accumulateWeighted(plane, luma, share)
    gray = scratch.take(luma.shape) if out is None else out
    return cv2.convertScaleAbs(luma, gray, sum(LUMA), -TRUNCATE)


def find_mean(planes: Array) -> float:
    """Return the mean of the grayscale image."""
    gray = planes[0] if len(planes) == 1 else to_grayscale(planes)
    return float(cv2.sumElems(gray)[0] / gray.size)


def _find_mean_luma(image: Array) -> float:
    """Return the mean of the luma of an image, (H, W, 3), with its fractions."""
    if image.flags.c_contiguous:
        red, green, blue, _ = cv2.sumElems(image)
    else:
        red, green, blue = (cv2.sumElems(plane)[0] for plane in split(image))
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue) / (image.size // RGB)


def estimate_mean(image: Array) -> float:
    """Return the mean of a large grayscale image to 0.01 levels, in half of the time or less.

    That is exact enough if no change but of brightness follows. The mean of the luma is exact. The
    fractions that a grayscale image drops are those of every 7th pixel of every 7th row, and not
    the 8th, since JPEGs have blocks of 8. Photographs differ by 0.01 levels from there to the other
    pixels, and no image by more than 1.
    """
    mean = _find_mean_luma(image)  # first: it fetches the pixels in order, from slow memory
    width = max(image.shape[1] // _PIXELS_APART, 1)
    rows = image[::_PIXELS_APART, : width * _PIXELS_APART]
    if image.flags.c_contiguous:
        sample = cv2.resize(rows, (width, len(rows)), interpolation=cv2.INTER_NEAREST)
        gray = cv2.transform(sample, _TO_GRAYSCALE)
    else:  # the same values, which these calls find in less time in planes
        sample = rows[:, ::_PIXELS_APART].copy(order="K")
        gray = to_grayscale(split(sample))
    return mean - (_find_mean_luma(sample) - float(cv2.sumElems(gray)[0]) / gray.size)


def is_grayscale(op: ops.ColorMatrixOp) -> bool:
    """Return whether an operation converts all images to grayscale, of one channel or three."""
    is_shaped = op.matrices.shape[1:] in ((1, RGB), (RGB, RGB))
    return is_shaped and op.spec.dtype == "uint8" and bool((op.matrices == LUMA).all())


def _run_sharpness(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blend an image with a blurred one. The pixels of the border stay as they are."""
    array, factor = as_packed(pixels), float(op.values[0][row])
    smooth = with_channels(cv2.filter2D(array, -1, _SMOOTH, dst=scratch.take(array.shape)))
    sharp = scratch.take(array.shape)
    _blend(array[None], factor, smooth, sharp[None])
    for border in (np.s_[:1], np.s_[-1:], np.s_[:, :1], np.s_[:, -1:]):
        sharp[border] = array[border]
    return sharp


def _run_permute(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    planes = split(pixels)
    return pixels if len(planes) == 1 else planes[op.values[0][row]].transpose(1, 2, 0)


def _run_blur(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Blur with torchvision's weights, one axis after the other, in float32."""
    (kernel_size, sigma), array = (values[row] for values in op.values), as_packed(pixels)
    color_ops.check_blur(kernel_size, array.shape[:2])
    x, y = (_gaussian(int(k), float(s)) for k, s in zip(kernel_size, sigma, strict=True))
    border = cv2.BORDER_REFLECT_101
    blurred: Array = cv2.sepFilter2D(array, cv2.CV_32F, x, y, borderType=border)
    return with_channels(np.rint(blurred, out=blurred).astype(np.uint8))


def _gaussian(size: int, sigma: float) -> NDArray[np.float32]:
    last = (size - 1) / 2
    weights: NDArray[np.float64] = np.exp(-0.5 * (np.linspace(-last, last, size) / sigma) ** 2)
    return np.asarray(weights / weights.sum(), np.float32)


def _run_hue(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    """Turn the hue in float32. Like torchvision, truncate the new values instead of rounding."""
    degrees, array = _CIRCLE * float(op.values[0][row]), as_packed(pixels)
    colors = _to_float(array)
    colors *= np.float32(1 / FULL)
    cv2.cvtColor(colors, cv2.COLOR_RGB2HSV, dst=colors)
    hue, turn = (_take_floats(array.shape[:2]) for _ in range(2))
    cv2.extractChannel(colors, 0, hue)  # NumPy is slow on a plane with strides
    hue += np.float32(degrees)
    if degrees < 0:
        hue += cv2.threshold(hue, _BELOW_ZERO, _CIRCLE, cv2.THRESH_BINARY_INV, turn)[1]
    hue -= cv2.threshold(hue, _BELOW_CIRCLE, _CIRCLE, cv2.THRESH_BINARY, turn)[1]
    cv2.insertChannel(hue, colors, 0)
    cv2.cvtColor(colors, cv2.COLOR_HSV2RGB, dst=colors)
    colors *= np.float32(FULL + 1 - 1e-3)
    turned = scratch.take(array.shape)
    np.copyto(turned, colors, casting="unsafe")
    return turned


def _run_color_matrix(op: ops.ColorMatrixOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    matrix = np.asarray(op.matrices[row], np.float32)
    is_luma = len(matrix) in (1, RGB) and (matrix == _LUMA).all()
    if array.dtype == np.uint8 and is_luma:
        gray = to_grayscale(split(array))
        return with_channels(gray) if len(matrix) == 1 else _repeat(gray)
    if array.dtype == np.uint8 and matrix.shape == (RGB, 1) and (matrix == 1).all():
        return _repeat(array[..., 0])
    mixed = with_channels(cv2.transform(array.astype(np.float32), matrix))
    if array.dtype == np.uint8:
        np.clip(mixed, 0, 255, out=mixed)  # astype truncates
    return mixed.astype(array.dtype)


def _repeat(gray: Array) -> Array:
    """Return three channels of uint8 that are equal, in a third of the time of cv2.merge."""
    return cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB, dst=scratch.take((*gray.shape, RGB)))


def is_uint8(op: ops.ColorOp, channels: Collection[int] = (1, RGB)) -> bool:
    """Return whether an operation is on images of uint8 with one of these numbers of channels."""
    return op.spec.dtype == "uint8" and op.spec.channels in channels


def make_rule(
    color: str,
    name: str,
    run: Callable[[ops.ColorOp, Pixels, int], Pixels],
    channels: Collection[int] = (1, RGB),
) -> Rule:
    """Return the rule of a kernel that runs the color function `color` on images of uint8."""
    return single(ops.ColorOp, name, run, lambda op: op.name == color and is_uint8(op, channels))


def _bind_grayscale(match: Match) -> Kernel | None:
    """Return the kernel that makes grayscale images in their slots; None if it cannot."""
    matrix, output = match[ops.ColorMatrixOp], find_planes(match)
    if output is None or not is_grayscale(matrix):
        return None

    def run(pixels: Pixels, row: int) -> None:
        planes = split(pixels)
        if output.begin(row, (matrix.matrices.shape[1], *planes.shape[1:]), torch.uint8):
            slot = output.slot_array(row)
            to_grayscale(planes, slot[0])
            slot[1:] = slot[0]

    return end_with_delivery("cv2.accumulateWeighted", match, run)


RULES = [
    Rule((ops.ColorMatrixOp, *CONVERTED), _bind_grayscale),
    make_rule("permute_channels", "cv2.split", _run_permute),
    make_rule("adjust_saturation", "cv2.addWeighted", _run_saturation),
    make_rule("adjust_sharpness", "cv2.filter2D", _run_sharpness),
    make_rule("gaussian_blur", "cv2.sepFilter2D", _run_blur),
    make_rule("adjust_hue", "cv2.cvtColor", _run_hue, channels=(RGB,)),
    single(ops.ColorMatrixOp, "cv2.transform", _run_color_matrix),
]
