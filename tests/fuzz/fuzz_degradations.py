"""Fuzzes the stages for noise, elastic transforms and the JPEG codec with images of all forms.

The pixels lie in memory between pages that nobody may touch. Every variant has to make the pixels
of the scalar one, and those have to be the pixels of NumPy, or of Pillow, to the bit. Elastic
transforms are compared with torchvision's in tests/engines/cpu/test_compiled_degradations.py.
"""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from fenced_memory import FencedMemory
from numbered_cases import Report, run_cases

from gpupipe.augment import noise, random_fields
from gpupipe.augment.elastic import Elastic
from gpupipe.runtime.installation import find_extension

_kernels, _jpeg = find_extension(), find_extension("_jpeg")
_MAX_SIDE = 90
_MAX_BYTES = 4 * 4 * _MAX_SIDE * (_MAX_SIDE + 8)


class Fuzzer:
    """Makes cases by number, and tries them."""

    def __init__(self) -> None:
        self.report = Report()
        self._memory = FencedMemory(_MAX_BYTES)

    def make_image(self, rng: np.random.Generator) -> NDArray[Any]:
        """Draw an image of 1 to 4 channels, uint8 or float32, with or without gaps."""
        dtype = np.dtype(rng.choice(["uint8", "float32"]))
        height, width, channels = (int(n) for n in rng.integers(1, [_MAX_SIDE, _MAX_SIDE, 5]))
        gap = int(rng.integers(0, 9)) * dtype.itemsize * int(rng.integers(2))
        stride = width * channels * dtype.itemsize + gap
        data = self._memory.take((height * stride - gap,), is_last=bool(rng.integers(4)))
        strides = stride, channels * dtype.itemsize, dtype.itemsize
        image = np.lib.stride_tricks.as_strided(
            data.view(dtype), (height, width, channels), strides
        )
        shades = rng.integers(0, 256, image.shape) if rng.integers(2) else rng.integers(0, 256)
        image[...] = shades if dtype == np.uint8 else np.asarray(shades) / np.float32(255)
        return image

    def try_case(self, number: int) -> None:
        """Run a stage on an image with each variant, and compare the pixels."""
        rng = np.random.default_rng([33, number])
        image = self.make_image(rng)
        before, made = image.copy(), []
        kind = ("noise", "noise window", "elastic", "jpeg")[int(rng.integers(4))]
        seeds, quality = rng.integers(0, 2**53, 1), int(rng.integers(1, 101))
        mean, sigma = rng.normal(0, 1), float(rng.exponential(0.2))
        alpha, blur = rng.exponential(40, 2).tolist(), rng.exponential(1.5, 2).tolist()
        window = rng.integers(-1, [*image.shape[:2], *image.shape[:2]])
        fill, is_bilinear = tuple(rng.integers(0, 256, 4).tolist()), bool(rng.integers(2))
        for variant in reversed(_kernels.variants()):
            _kernels.select(variant)
            if kind == "noise":
                how = noise.scale_noise(mean, sigma, image.dtype.name)
                stage = _kernels.noise_stage(seeds, *how, is_bilinear)
            elif kind == "noise window":
                stage = _kernels.noise_window_stage(window[None], seeds, None)
            elif kind == "elastic":
                elastic = Elastic(tuple(alpha), tuple(blur))
                stage = _kernels.elastic_stage(seeds, elastic.arguments, is_bilinear, fill)
            else:
                stage = _jpeg.jpeg_stage(np.array([quality]))
            pixels = _kernels.run_stage(stage, 0, image)
            made.append(None if pixels is None else np.asarray(pixels))
        results = {None if pixels is None else pixels.tobytes() for pixels in made}
        if len(results) > 1:
            self.report.findings.append(f"case {number}: variants differ in {kind}")
        if not np.array_equal(image, before):
            self.report.findings.append(f"case {number}: {kind} changed its input")
        expected = made[0]
        if kind == "noise":
            drawn = random_fields.draw_normal(int(seeds[0]), image.size).reshape(image.shape)
            expected = add_noise(before, drawn, mean, sigma, is_bilinear)
        elif kind == "noise window":
            expected = fill_window(before, window.tolist(), int(seeds[0]))
        elif kind == "jpeg" and made[0] is not None:
            expected = encode_and_decode(before, quality)
        if (made[0] is None) != (expected is None) or (
            expected is not None and not np.array_equal(made[0], expected)
        ):
            self.report.findings.append(
                f"case {number}: {kind} has other pixels than the reference"
            )


def add_noise(
    image: NDArray[Any], drawn: NDArray[np.float32], mean: float, sigma: float, clip: bool
) -> NDArray[Any]:
    factor, shift = noise.scale_noise(mean, sigma, image.dtype.name)
    values = drawn * np.float32(factor) + np.float32(shift)
    if image.dtype == np.uint8:
        total = image + np.clip(values, -255, 255).astype(np.int16)
        return np.clip(total, 0, 255).astype(np.uint8)
    return np.clip(image + values, 0, 1) if clip else image + values


def fill_window(image: NDArray[Any], window: list[int], seed: int) -> NDArray[Any] | None:
    """Return the image with noise in its window; None if the extension leaves it to Python."""
    top, left, height, width = window
    if image.dtype == np.uint8:
        return None
    if not height or not width:
        return image
    if min(window) < 0 or top + height > image.shape[0] or left + width > image.shape[1]:
        return None
    part = image[top : top + height, left : left + width]
    part[...] = random_fields.draw_normal(seed, part.size).reshape(part.shape)
    return image


def encode_and_decode(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    encoded = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(
        encoded, "JPEG", quality=quality
    )
    return np.array(Image.open(encoded)).reshape(image.shape)


if __name__ == "__main__":
    fuzzer = Fuzzer()
    sys.exit(run_cases(__doc__, fuzzer.report, fuzzer.try_case))
