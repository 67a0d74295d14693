"""Runs a kernel of gpupipe._kernels on images, and into batches, that lie beside pages which nobody
may touch, with all variants: a part of test_fenced_kernels.py.

    page that is forbidden | image or batch | page that is forbidden

A read or write outside ends the process. The last line of standard error is the case.

# KERNEL: a key of KERNELS
python tests/native/fenced_kernels.py KERNEL
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.fenced_memory import FencedMemory
from gpupipe.augment.elastic import Elastic
from gpupipe.runtime.installation import find_extension
from helpers.color_stages import NUMBERS, create_stage

_kernels = find_extension()
_jpeg = find_extension("_jpeg")
_SOURCE, _BATCH = FencedMemory(1 << 18), FencedMemory(1 << 18)

Create = Callable[[Any], Any]
"""Returns the stage for an output; None stands for an image."""
HEIGHTS = (1, 2, 5, 8)
WIDTHS = (1, 2, 3, 4, 5, 7, 16, 17, 33, 64, 65, 130)
MODES = tuple(itertools.product((False, True), (False, True)))
FLIPS = tuple(np.array([flips], np.uint8) for flips in itertools.product((0, 1), (0, 1)))
COLORS = {
    "adjust_hue": (0.3,),
    "gaussian_blur": (3.0, 3.0, 1.0, 1.0),
    "permute_channels": (2.0, 0.0, 1.0),
    "posterize": (3.0,),
    "scale_and_shift": (1.2, 0.1),
    "scale_and_shift_by_mean": (1.2, 0.1),
    "solarize_add": (100.0,),
}
"""The values of functions that do not take one of 0.7."""


def make_image(
    shape: tuple[int, int, int], dtype: str, gap: int, is_planar: bool, is_last: bool
) -> Any:
    """Return an image (H, W, C) of noise at one end of its memory, with `gap` values after rows."""
    height, width, channels = shape
    pieces, step = (channels, 1) if is_planar else (1, channels)
    row, item = width * step + gap, np.dtype(dtype).itemsize
    size = row * height * pieces - gap
    values = _SOURCE.take((size * item,), is_last).view(dtype)
    values[:] = np.random.default_rng(size).integers(0, 256, size)
    if dtype == "float32":
        values /= np.float32(255)
    strides = row * item, step * item, (row * height if is_planar else 1) * item
    return np.lib.stride_tricks.as_strided(values, shape, strides)


def make_outputs(shape: tuple[int, ...], dtype: str) -> Iterator[Any]:
    """Yield the outputs for a sample (H, W, C): planes and pixels, as they are and normalized."""
    channels = shape[2]
    numbers = np.ones((3, channels), np.float32)
    table = np.zeros((channels, 256), np.float32)
    forms: list[tuple[str, Any, Any]] = [(dtype, None, None)]
    if dtype == "float32":
        forms.append((dtype, None, numbers))
    else:
        forms += [("float32", table, numbers), ("float16", table.astype("float16"), numbers)]
        forms += [("float32", table, None)]
    for (kind, table, factors), is_planar, is_last in itertools.product(
        forms, (False, True), (False, True)
    ):
        whole = (channels, *shape[:2]) if is_planar else shape
        item = np.dtype(kind).itemsize
        room = _BATCH.take((int(np.prod(whole)) * item,), is_last)
        batch = room.view(kind).reshape(1, *whole)
        yield batch if is_planar else batch.transpose(0, 3, 1, 2), table, factors


def make_images() -> Iterator[Any]:
    """Yield images of all sizes, channels, dtypes and layouts."""
    for n, (height, width, channels, dtype, is_planar) in enumerate(
        itertools.product(HEIGHTS, WIDTHS, (1, 2, 3, 4), ("uint8", "float32"), (False, True))
    ):
        gap, is_last = (0, 3)[n % 3 == 0], n % 5 > 0
        yield make_image((height, width, channels), dtype, gap, is_planar, is_last)


def make_rows() -> Iterator[Any]:
    """Yield images of two rows: a resize may read after the first as far as the second goes."""
    for width, channels in itertools.product(range(1, 140), (1, 2, 3, 4)):
        yield make_image((2, width, channels), "uint8", 0, False, True)


def then_deliver(stage: Any, flips: Any = None) -> Create:
    return lambda output: _kernels.program((stage, _kernels.deliver_stage(flips, output)))


def move(image: Any) -> Iterator[Create]:
    for flips in FLIPS:
        yield partial(_kernels.deliver_stage, flips)


def crop(image: Any) -> Iterator[Create]:
    height, width = image.shape[:2]
    stage = _kernels.crop_stage(np.array([[height // 2, width // 2, 1, width - width // 2]]))
    yield then_deliver(stage, FLIPS[2])


def window(image: Any) -> Iterator[Create]:
    height, width, channels = image.shape
    fill = bytes(channels * image.itemsize)
    for (top, left), flips in zip(((-1, -2), (1, 2), (0, 0), (-9, 0)), FLIPS, strict=True):
        own = np.array([[top, left, height + 1, width]]), fill, flips
        yield partial(_kernels.window_stage, *own)


def pad(image: Any) -> Iterator[Create]:
    for mode, flips in zip(("edge", "reflect", "symmetric"), FLIPS[1:], strict=True):
        for borders in ([1, 2, 3, 4], [1, 0, 0, 0]):
            own = np.array([borders]), mode, flips
            yield partial(_kernels.pad_stage, *own)


def resize(image: Any) -> Iterator[Create]:
    height, width = image.shape[:2]
    sizes = (height, width), (1, 1), (3, 2 * width + 1), (2, width // 2 + 1)
    for n, size in enumerate(sizes):
        own = np.array([size]), None, FLIPS[2], *MODES[(n + width) % len(MODES)]
        yield partial(_kernels.resize_stage, *own)


def shrink(image: Any) -> Iterator[Create]:
    width = image.shape[1]
    for n in sorted({1, 2, 3, 7, 16, 17, 33, width // 3, width // 2} - {0}):
        own = np.array([[1, n]]), None, None, *MODES[(n + width) % len(MODES)]
        yield partial(_kernels.resize_stage, *own)


def warp(image: Any) -> Iterator[Create]:
    height, width = image.shape[:2]
    size = np.array([[height + 1, width + 2]])
    turned = np.array([[[0.9, 0.1, -1.0], [-0.1, 0.9, 0.5], [0.01, 0.002, 1.0]]])
    for rows, matrix in itertools.product((2, 3), (turned, np.eye(3)[None])):
        own = np.ascontiguousarray(matrix[:, :rows]), size
        for is_nearest in (True, False) if image.itemsize == 1 else (False,):
            yield partial(_kernels.warp_stage, *own, is_nearest, None)


def transpose(image: Any) -> Iterator[Create]:
    yield then_deliver(_kernels.transpose_stage())


def erase(image: Any) -> Iterator[Create]:
    height, width, channels = image.shape
    windows = np.array([[height // 2, width // 2, 1, 1]])
    yield then_deliver(_kernels.erase_stage(windows, bytes(channels * image.itemsize)))


def noise(image: Any) -> Iterator[Create]:
    yield then_deliver(_kernels.noise_stage(np.array([1]), 1.0, 0.0, True))


def noise_window(image: Any) -> Iterator[Create]:
    height, width = image.shape[:2]
    top, left, seed = height // 2, width // 2, np.array([1])
    windows = np.array([[top, left, height - top, width - left]])

    def create(output: Any) -> Any:
        deliver = _kernels.deliver_stage(None, output)
        if output is None and image.itemsize == 4:
            return _kernels.noise_window_stage(windows, seed, None)
        if output is None or output[0].dtype == "uint8":
            return deliver
        then = _kernels.noise_window_stage(windows, seed, (*output[:2], None))
        return _kernels.program((deliver, then))

    yield create


def elastic(image: Any) -> Iterator[Create]:
    how = Elastic((1.0, 1.0), (0.1, 0.1)).arguments
    for is_bilinear in (False, True):
        own = np.array([1]), how, is_bilinear, (0.0,) * 4
        yield then_deliver(_kernels.elastic_stage(*own))


def jpeg(image: Any) -> Iterator[Create]:
    if image.itemsize == 1 and image.shape[2] in (1, 3):
        yield then_deliver(_jpeg.jpeg_stage(np.array([75])))


def blend(image: Any) -> Iterator[Create]:
    if image.itemsize == 1:
        yield then_deliver(
            _kernels.blend_stage(np.array([[0.5, 0.5]]), (_kernels.program(()),) * 2)
        )


def color(image: Any) -> Iterator[Create]:
    for name in NUMBERS if image.shape[2] in (1, 3) else ():
        if name in ("to_gray", "to_rgb") and image.shape[2] != (3 if name == "to_gray" else 1):
            continue
        stage = create_stage([(name, *COLORS.get(name, (0.7,)))])
        if _kernels.run_stage(stage, 0, image) is not None:
            yield then_deliver(stage)


KERNELS = {
    function.__name__: function
    for function in (move, crop, window, pad, resize, shrink, warp, transpose, erase, noise)
} | {function.__name__: function for function in (noise_window, elastic, jpeg, blend, color)}


def run_on_images(kernel: str) -> int:
    """Run a kernel on images with all variants, alone and into batches; return how often."""
    count = 0
    for image in make_rows() if kernel == "shrink" else make_images():
        for create, variant in itertools.product(KERNELS[kernel](image), _kernels.variants()):
            print(variant, image.shape, image.dtype, image.strides, file=sys.stderr)
            _kernels.select(variant)
            made = np.asarray(_kernels.run_stage(create(None), 0, image))
            outputs = make_outputs(made.shape, made.dtype.name)
            for output in itertools.islice(outputs, count % 7, None, 7):
                assert _kernels.run_program(create(output), [0], [image]) == []
            count += 1
    return count


if __name__ == "__main__":
    print(run_on_images(sys.argv[1]))
