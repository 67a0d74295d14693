"""Kernels for images that are not RGB in uint8: each against NumPy, or the kernel for RGB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpupipe.engines.cpu import any_channel_kernels

kernels = pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
HEIGHT, WIDTH = 23, 37
CASES = [(dtype, channels) for dtype in ("uint8", "float32") for channels in (1, 2, 3, 4)]


def numbers(dtype: str, channels: int, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, channels))
    return values.astype(dtype)


def run(stage: Any, image: Any) -> Any:
    return np.asarray(kernels.run_stage(stage, 0, image))


@pytest.mark.parametrize(("dtype", "channels"), CASES)
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_a_delivery_flips_converts_and_erases(layout: str, dtype: str, channels: int) -> None:
    image, rng = numbers(dtype, channels), np.random.default_rng(1)
    shape = {"CHW": (1, channels, HEIGHT, WIDTH), "HWC": (1, HEIGHT, WIDTH, channels)}[layout]
    table = rng.random((channels, 256), np.float32)
    factors = np.stack([np.ones(channels), rng.random(channels), rng.random(channels) + 1])
    factors = factors.astype(np.float32)
    window, value = np.array([[2, 3, 5, 7]]), rng.random(channels, np.float32)
    converted: dict[Any, Any] = {
        "float32": (image - factors[1]) / factors[2],
        "uint8": np.stack([table[c][image[..., c].astype(np.uint8)] for c in range(channels)], -1),
    }
    for flips in ([0, 0], [1, 0], [0, 1], [1, 1]):
        batch = np.zeros(shape, np.float32)
        planes = batch if layout == "CHW" else batch.transpose(0, 3, 1, 2)
        convert = (table, None) if dtype == "uint8" else (None, factors)
        output = (planes, *convert, window, value)
        stage = kernels.deliver_any_stage(np.array([flips], np.uint8), output)
        assert kernels.run_program(stage, [0], [image]) == []
        expected = converted[dtype][:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]].copy()
        expected[2:7, 3:10] = value
        assert np.array_equal(planes[0].transpose(1, 2, 0), expected)
        same = np.zeros(shape, dtype)
        planes = same if layout == "CHW" else same.transpose(0, 3, 1, 2)
        stage = kernels.deliver_any_stage(np.array([flips], np.uint8), (planes, None, None))
        assert kernels.run_program(stage, [0], [image]) == []
        flipped = image[:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]]
        assert np.array_equal(planes[0].transpose(1, 2, 0), flipped)
        alone = run(kernels.flip_stage(np.array([flips], np.uint8)), image)
        assert np.array_equal(alone, flipped)


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_rows_of_any_length_are_flipped(dtype: str, channels: int) -> None:
    stage = kernels.flip_stage(np.array([[1, 0]], np.uint8))
    for width in range(1, 20):
        image = np.ascontiguousarray(numbers(dtype, channels)[:, :width])
        assert np.array_equal(run(stage, image), image[:, ::-1])


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_rows_become_columns(dtype: str, channels: int) -> None:
    for height, width in ((HEIGHT, WIDTH), (1, WIDTH), (HEIGHT, 1)):
        image = numbers(dtype, channels)[:height, :width]
        turned = run(kernels.transpose_stage(), np.ascontiguousarray(image))
        assert np.array_equal(turned, image.swapaxes(0, 1))


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_windows_are_erased(dtype: str, channels: int) -> None:
    image = numbers(dtype, channels)
    value = np.arange(1, channels + 1).astype(dtype)
    for top, left, height, width in ([3, 5, 4, 7], [0, 0, HEIGHT, WIDTH], [9, 9, 0, 5]):
        stage = kernels.erase_stage(np.array([[top, left, height, width]]), value.tobytes())
        expected = image.copy()
        expected[top : top + height, left : left + width] = value
        before = image.copy()
        assert np.array_equal(run(stage, image), expected)
        assert np.array_equal(image, before)


def test_what_cannot_be_erased_is_left_to_python() -> None:
    image = numbers("uint8", 3)
    for window in ([-1, 0, 5, 5], [0, 0, HEIGHT + 1, 5], [0, 2**62, 5, 2**62]):
        assert kernels.run_stage(kernels.erase_stage(np.array([window]), b"abc"), 0, image) is None
    of_gray = kernels.erase_stage(np.array([[0, 0, 5, 5]]), b"a")
    assert kernels.run_stage(of_gray, 0, image) is None
    with pytest.raises(ValueError, match="more than a pixel"):
        kernels.erase_stage(np.array([[0, 0, 5, 5]]), bytes(17))


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_planes_are_interleaved_first(dtype: str, channels: int) -> None:
    planes = np.ascontiguousarray(numbers(dtype, channels).transpose(2, 0, 1))
    assert np.array_equal(
        run(kernels.program(()), planes.transpose(1, 2, 0)).transpose(2, 0, 1), planes
    )


@pytest.mark.parametrize(("dtype", "channels"), CASES)
@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_borders_are_those_of_numpy(mode: Any, dtype: str, channels: int) -> None:
    image = numbers(dtype, channels)
    for borders in ([1, 2, 3, 4], [0, 0, 22, 0], [60, 0, 0, 90]):
        padded = run(kernels.pad_stage(np.array([borders]), mode), image)
        top, left, bottom, right = borders
        expected = np.pad(image, ((top, bottom), (left, right), (0, 0)), mode)
        assert np.array_equal(padded, expected)


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_windows_may_leave_the_image(dtype: str, channels: int) -> None:
    image = numbers(dtype, channels)
    fill = np.arange(1, channels + 1).astype(dtype)
    canvas = np.empty((HEIGHT + 200, WIDTH + 200, channels), dtype)
    canvas[...] = fill
    canvas[100:-100, 100:-100] = image
    windows = [[-3, -5, 40, 50], [4, 5, 6, 7], [-50, -60, 9, 9], [10, 30, 20, 9], [22, 36, 5, 5]]
    for top, left, height, width in [*windows, [-9, 2, 12, 5], [30, 40, 3, 3]]:
        stage = kernels.window_stage(np.array([[top, left, height, width]]), fill.tobytes())
        rows, columns = slice(100 + top, 100 + top + height), slice(100 + left, 100 + left + width)
        assert np.array_equal(run(stage, image), canvas[rows, columns])


def test_what_a_window_cannot_be_is_left_to_python() -> None:
    image = numbers("uint8", 3)
    for window in ([0, 0, 0, 5], [0, 0, 2**40, 5], [2**62, 0, 5, 5]):
        assert kernels.run_stage(kernels.window_stage(np.array([window]), b"abc"), 0, image) is None
    of_gray = kernels.window_stage(np.array([[-1, 0, 5, 5]]), b"a")
    assert kernels.run_stage(of_gray, 0, image) is None
    with pytest.raises(ValueError, match="more than a pixel"):
        kernels.window_stage(np.array([[0, 0, 5, 5]]), bytes(17))
    with pytest.raises(ValueError, match="edge, reflect or symmetric"):
        kernels.pad_stage(np.array([[0, 0, 5, 5]]), "wrap")


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_channels_are_those_of_rgb(channels: int) -> None:
    image, size = numbers("uint8", channels), np.array([[11, 19]])
    window, flips = np.array([[0, 0, 11, 19]]), np.array([[1, 0]], np.uint8)
    resize = kernels.resize_stage(size, window, flips, False, True, None)
    parts = (resize,) * (1 if channels < 4 else 2)
    resized = run(kernels.channels_stage(parts), image)
    for c in range(channels):
        rgb = np.repeat(image[..., c : c + 1], 3, 2)
        assert np.array_equal(resized[..., c], run(resize, rgb)[..., 0])
    assert kernels.run_stage(kernels.channels_stage((resize,) * 3), 0, image) is None


def test_the_rules_are_those_of_a_machine_with_the_extension() -> None:
    assert any_channel_kernels.create_rules()
