"""Resizes to nearest pixels in the extension: torch's pixels, with crops, flips and integers.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.stages import create_native, create_run, run_native
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec
from gpupipe.pipeline.tensors import cut
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.steps.to_dtype import ToDtype
from helpers.kernel_arguments import run
from helpers.kernel_variants import extension
from helpers.kernel_variants import variant as variant  # noqa: PLC0414  # a fixture

SIZES = [(1, 1), (1, 9), (5, 3), (17, 33), (50, 1), (150, 201), (31, 900)]
Numbers = NDArray[np.uint8 | np.float32]


def picture(height: int, width: int, channels: int, dtype: str = "uint8", seed: int = 0) -> Numbers:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, channels))
    return levels.astype(dtype)  # type: ignore[no-any-return]


def as_tensor(image: Numbers) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)


def reference(image: Numbers, size: tuple[int, int]) -> torch.Tensor:
    pixels = as_tensor(image)[None].contiguous()
    return torch.nn.functional.interpolate(pixels, size, mode="nearest")[0]


def resize(
    image: Numbers,
    size: tuple[int, int],
    window: Any = None,
    fill: bytes = b"",
    flips: tuple[int, int] | None = None,
) -> torch.Tensor:
    shape = size if window is None else tuple(window[2:])
    made = torch.zeros(image.shape[2], *shape, dtype=torch.from_numpy(image).dtype)
    places = None if window is None else np.array([window])
    flags = None if flips is None else np.array([flips], np.uint8)
    output = made.numpy()[None], None, None
    run(extension.nearest_stage(np.array([size]), places, fill, flags, output), image)
    return made


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_are_those_of_torch(variant: str, dtype: str) -> None:
    for source, size, channels in product(SIZES, SIZES, (1, 2, 3, 4)):
        image = picture(*source, channels, dtype)
        assert torch.equal(resize(image, size), reference(image, size)), (source, size, channels)


def test_sizes_at_random_have_torchs_pixels() -> None:
    """Many scales are no float32, and some products with an index lie at a whole number."""
    rng = np.random.default_rng(0)
    for n in range(2000):
        source, size = map(int, rng.integers(1, 3000, 2))
        columns = np.arange(source, dtype=np.float32).reshape(1, -1, 1)
        expected = reference(columns, (1, size))
        assert torch.equal(resize(columns, (1, size)), expected), (n, source, size)


@pytest.mark.parametrize("channels", [1, 3])
def test_windows_may_leave_the_result_and_are_flipped(variant: str, channels: int) -> None:
    image, size = picture(31, 44, channels), (23, 61)
    whole, fill = reference(image, size), 201
    windows = [(0, 0, 23, 61), (5, 7, 11, 13), (-4, -6, 40, 80), (20, 50, 9, 30), (-90, 3, 8, 9)]
    for window, flips in product(windows, [None, (0, 0), (1, 0), (0, 1), (1, 1)]):
        made = resize(image, size, window, bytes([fill] * channels), flips)
        expected = cut(whole, window[:2], window[2:], (fill,))
        axes = [axis for axis, flag in zip((-1, -2), flips or (0, 0), strict=True) if flag]
        assert torch.equal(made, expected.flip(axes)), (window, flips)


def test_a_window_outside_needs_a_fill_of_a_pixel() -> None:
    image = picture(8, 8, 3)
    for fill in (b"", b"\1", b"\1\2\3\4"):
        stage = extension.nearest_stage(
            np.array([(8, 8)]), np.array([(1, 0, 8, 8)]), fill, None, None
        )
        assert extension.run_program(stage, [0], [image]) == [0]
    with pytest.raises(ValueError, match="more than a pixel"):
        extension.nearest_stage(np.array([(8, 8)]), None, bytes(17), None, None)
    with pytest.raises(ValueError, match="empty or too large"):
        extension.nearest_stage(np.array([(8, 1 << 21)]), None, b"", None, None)


DTYPES = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "bool"]
DTYPES += ["float16", "float32", "float64"]
SPEC = Spec.of_image(1)


def trace(tracer: Tracer, crop: bool, fill: Any, flags: Any, is_flip_first: bool) -> None:
    """A resize, a crop that leaves it if there is a fill, and flips of some samples."""
    sizes = np.array([[40, 31], [17, 52], [33, 33]])
    tracer.resize(sizes, "nearest", True)
    if is_flip_first:
        tracer.flip(*flags)
    if crop:
        corner = [[-3, 9], [4, -7], [20, 1]] if fill else [[1, 2], [3, 4], [5, 6]]
        tracer.crop(np.array(corner), np.array([12, 24]), fill)
    if not is_flip_first:
        tracer.flip(*flags)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_flip_first", [True, False], ids=["flip-crop", "crop-flip"])
@pytest.mark.parametrize("fill", [None, (255.0,)], ids=["inside", "fill"])
def test_masks_become_integers_in_one_native_program(
    fill: Any, is_flip_first: bool, dtype: str
) -> None:
    images = [picture(29, 37, 1, seed=n) for n in range(3)]
    flags = np.array([1, 0, 1]), np.array([0, 1, 1])
    buffer = OutputBuffer(3, DeliveryFormat(None, None, channels_last=False), BatchMemory(1))
    tracer = Tracer([[29, 37]] * 3, find_rules(), SPEC)
    trace(tracer, True, fill, flags, is_flip_first)
    tracer.to_dtype(dtype, False)
    stage = create_native(tracer.program(buffer).groups, ())
    assert stage is not None
    assert run_native(create_run(stage, images, None, None), range(3)) == []
    made = buffer.take([0, 1, 2])
    assert made.dtype == getattr(torch, dtype)
    sizes = [(40, 31), (17, 52), (33, 33)]
    corners = [(-3, 9), (4, -7), (20, 1)] if fill else [(1, 2), (3, 4), (5, 6)]
    for n, image in enumerate(images):
        expected = reference(image, sizes[n])
        axes = [axis for axis, flag in zip((-1, -2), flags, strict=True) if flag[n]]
        if is_flip_first:
            expected = expected.flip(axes)
        expected = cut(expected, corners[n], (12, 24), fill or (0.0,))
        if not is_flip_first:
            expected = expected.flip(axes)
        converted = ToDtype(dtype=dtype, scale=False).torch(expected, {})
        assert torch.equal(made[n], converted), n


def test_an_image_passes_on_to_the_next_kernel() -> None:
    """A resize that no delivery follows, and a crop without a fill that is not inside."""
    image, flags = picture(29, 37, 3), (np.array([1]), np.array([0]))
    tracer = Tracer([[29, 37]], find_rules(), Spec.of_image(3))
    tracer.resize(np.array([[40, 31]]), "nearest", True)
    tracer.flip(*flags)
    tracer.transpose()
    made = tracer.program().run(image, 0)
    expected = reference(image, (40, 31)).flip(-1).permute(2, 1, 0)
    assert torch.equal(torch.from_numpy(np.asarray(made)), expected)


def test_a_crop_that_is_not_inside_is_the_samples_fault() -> None:
    tracer = Tracer([[29, 37]], find_rules(), SPEC)
    tracer.resize(np.array([[10, 10]]), "nearest", True)
    tracer.crop(np.array([[0, 0]]), np.array([11, 10]))
    with pytest.raises(Exception, match="10x10"):
        tracer.program().run(picture(29, 37, 1), 0)
