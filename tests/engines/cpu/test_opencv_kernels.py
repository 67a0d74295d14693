"""Windows and borders outside of an image with OpenCV, against NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from gpupipe.augment.color_ops import LUMA
from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu import kernels
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.pixels import MAX_OPENCV_CHANNELS, as_array, as_tensor
from gpupipe.engines.cpu.program import Rules
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import SampleIncompatibleError, Spec
from gpupipe.pipeline.tensors import to_steps
from gpupipe.runtime.batch_memory import BatchMemory

pytest.importorskip("cv2", reason="OpenCV is not installed")

from gpupipe.engines.cpu import opencv_kernels

SIZE = (13, 20)
RULES = Rules([*opencv_kernels.create_rules(), *kernels.RULES])  # without the extension
CASES = [(dtype, channels) for dtype in ("uint8", "float32") for channels in (1, 2, 3, 4)]


def trace(image: Any) -> Tracer:
    return Tracer([SIZE], RULES, Spec.of_image(image.shape[2], dtype=str(image.dtype)))


def run(tracer: Tracer, image: Any, name: str = "cv2.copyMakeBorder") -> Any:
    program = tracer.program()
    assert program.groups[0][0].name == name
    return as_array(program.run(image, 0))


def numbers(dtype: str, channels: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, (*SIZE, channels)).astype(dtype)


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_windows_may_leave_the_image(dtype: str, channels: int) -> None:
    image, fill = numbers(dtype, channels), tuple(float(c + 1) for c in range(channels))
    canvas = np.empty((SIZE[0] + 200, SIZE[1] + 200, channels), dtype)
    canvas[...] = fill
    canvas[100:-100, 100:-100] = image
    windows = [(-3, -5, 40, 50), (4, 5, 6, 7), (-50, -60, 9, 9), (10, 15, 20, 9), (30, 2, 3, 3)]
    for top, left, height, width in windows:
        tracer = trace(image)
        tracer.crop((top, left), (height, width), fill)
        expected = canvas[100 + top : 100 + top + height, 100 + left : 100 + left + width]
        assert np.array_equal(run(tracer, image), expected)


@pytest.mark.parametrize(("dtype", "channels"), CASES)
@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_borders_are_those_of_numpy(mode: Any, dtype: str, channels: int) -> None:
    image = numbers(dtype, channels)
    tracer = trace(image)
    tracer.pad((1, 2), (3, 4), mode)
    assert np.array_equal(run(tracer, image), np.pad(image, ((1, 3), (2, 4), (0, 0)), mode))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_rows_become_columns(channels: int) -> None:
    image = numbers("uint8", channels)
    tracer = trace(image)
    tracer.transpose()
    assert np.array_equal(run(tracer, image, "cv2.transpose"), image.swapaxes(0, 1))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resized_colors_are_torchvisions(interpolation: str) -> None:
    image = numbers("uint8", 3)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    mode = InterpolationMode(interpolation)
    for given in (image, planes, image[1:9, 2:11]):
        height, width = given.shape[:2]
        for size in ([7, 9], [40, 31], [height, 9], [7, width], [height, width]):
            tracer = trace(given)
            tracer.resize(size, interpolation, True)
            resized = run(tracer, given, "torch.interpolate")
            expected = F.resize(as_tensor(given), size, mode, antialias=True)
            assert np.array_equal(resized, as_array(expected)), size


@pytest.mark.parametrize("channels", [1, 2, 3, 4, MAX_OPENCV_CHANNELS + 1])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_delivered_resizes_are_torchvisions(channels: int, layout: Any) -> None:
    image = numbers("uint8", channels)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    fixed = image.copy()
    fixed.flags.writeable = False
    for given in (image, planes, fixed):
        for size in ([7, 9], [40, 31], list(SIZE)):
            for window in (None, (1, 2, 5, 6), (0, 0, *size)):
                tracer = trace(given)
                tracer.resize(size, "bilinear", True)
                expected = F.resize(as_tensor(given), size, antialias=True)
                if window is not None:
                    tracer.crop(window[:2], window[2:], None)
                    expected = F.crop(expected, *window)
                buffer = OutputBuffer(1, DeliveryFormat(None, layout, False), BatchMemory(1))
                program = tracer.program(buffer)
                names = [kernel.name for kernel, _ in program.groups]
                assert (names == ["torch.interpolate"]) == (layout == "CHW" and channels < 5)
                program.run(given, 0)
                found = to_steps(buffer.take([0])[0], layout)
                assert torch.equal(found, expected), (size, window)
        assert np.array_equal(given, image)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_resizes_of_each_kind_are_delivered(interpolation: str, antialias: bool) -> None:
    image = numbers("uint8", 3)
    tracer = trace(image)
    tracer.resize([7, 9], interpolation, antialias)
    buffer = OutputBuffer(1, DeliveryFormat(None, "CHW", False), BatchMemory(1))
    tracer.program(buffer).run(image, 0)
    mode = InterpolationMode(interpolation)
    expected = F.resize(as_tensor(image), [7, 9], mode, antialias=antialias)
    assert torch.equal(buffer.take([0])[0], expected)


@pytest.mark.parametrize("fill", [None, (9.0,) * 3])
def test_crops_may_leave_a_resized_image_with_a_fill(fill: tuple[float, ...] | None) -> None:
    image = numbers("uint8", 3)
    tracer = trace(image)
    tracer.resize([7, 9], "bilinear", True)
    tracer.crop((-2, 3), (7, 8), fill)
    buffer = OutputBuffer(1, DeliveryFormat(None, "CHW", False), BatchMemory(1))
    if fill is None:
        with pytest.raises(SampleIncompatibleError, match="not inside"):
            tracer.program(buffer).run(image, 0)
        return
    tracer.program(buffer).run(image, 0)
    resized = F.resize(as_tensor(image), [7, 9], antialias=True)
    expected = torch.full((3, 7, 8), 9, dtype=torch.uint8)
    expected[:, 2:, :6] = resized[:, :5, 3:]
    assert torch.equal(buffer.take([0])[0], expected)


@pytest.mark.parametrize("size", [SIZE, (300, 400)])
@pytest.mark.parametrize("channels", [1, 3])
def test_delivered_grayscale_images_are_torchvisions(channels: int, size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    fixed = planes.copy(order="K")
    fixed.flags.writeable = False
    for given in (image, planes, fixed, image[1:9, 2:11]):
        before = given.copy()
        expected = F.rgb_to_grayscale(as_tensor(given), channels).numpy()
        for layout, name in (("CHW", "cv2.accumulateWeighted"), ("HWC", "cv2.transform")):
            tracer = Tracer([given.shape[:2]], RULES, Spec.of_image(3))
            tracer.color_matrix(np.tile(LUMA, (1, channels, 1)))
            buffer = OutputBuffer(1, DeliveryFormat(None, layout, False), BatchMemory(1))
            program = tracer.program(buffer)
            assert program.groups[0][0].name == name
            program.run(given, 0)
            axes = (2, 0, 1) if layout == "HWC" else (0, 1, 2)
            assert np.array_equal(buffer.take([0])[0].numpy().transpose(axes), expected)
        assert np.array_equal(given, before)


@pytest.mark.parametrize("dtype", [None, "uint8", "float32"])
@pytest.mark.parametrize("has_conversion", [False, True])
def test_grayscale_images_are_converted_too(dtype: str | None, has_conversion: bool) -> None:
    image = numbers("uint8", 3)
    tracer = trace(image)
    tracer.color_matrix(np.tile(LUMA, (1, 3, 1)))
    expected = F.rgb_to_grayscale(as_tensor(image), 3)
    if has_conversion:
        tracer.to_dtype("float32", True)
        expected = F.to_dtype(expected, torch.float32, scale=True)
    buffer = OutputBuffer(1, DeliveryFormat(dtype, "CHW", False), BatchMemory(1))
    tracer.program(buffer).run(image, 0)
    found = buffer.take([0])[0]
    expected = expected if dtype is None else expected.to(getattr(torch, dtype))
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_some_images_of_a_batch_become_grayscale() -> None:
    image = numbers("uint8", 3)
    tracer = Tracer([SIZE, SIZE], RULES, Spec.of_image(3))
    tracer.color_matrix(np.stack([np.eye(3), np.tile(LUMA, (3, 1))]))
    buffer = OutputBuffer(2, DeliveryFormat(None, "CHW", False), BatchMemory(1))
    program = tracer.program(buffer)
    for row in (0, 1):
        program.run(image, row)
    first, second = buffer.take([0, 1])
    assert torch.equal(first, as_tensor(image))
    assert torch.equal(second, F.rgb_to_grayscale(as_tensor(image), 3))


@pytest.mark.parametrize("channels", [MAX_OPENCV_CHANNELS, MAX_OPENCV_CHANNELS + 1])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_arrays_of_many_channels_are_delivered(layout: str, channels: int) -> None:
    """OpenCV splits an array of too many channels wrongly, and says nothing."""
    image = numbers("uint8", channels)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    for given in (image, planes, planes[1:9, 2:11]):
        buffer = OutputBuffer(1, DeliveryFormat(None, layout, False), BatchMemory(1))
        program = trace(given).program(buffer)
        assert [kernel.name for kernel, _ in program.groups] == ["cv2.LUT"]
        program.run(given, 0)
        expected = given if layout == "HWC" else given.transpose(2, 0, 1)
        assert np.array_equal(buffer.take([0])[0].numpy(), expected)

        tracer, means = trace(given), np.linspace(0.1, 0.9, channels)
        tracer.to_dtype("float32", True)
        tracer.normalize(tuple(means), (0.5,) * channels)
        buffer = OutputBuffer(1, DeliveryFormat(None, layout, False), BatchMemory(1))
        program = tracer.program(buffer)
        assert [kernel.name for kernel, _ in program.groups] == ["cv2.LUT"]
        program.run(given, 0)
        expected = (given / 255 - means) / 0.5
        expected = expected if layout == "HWC" else expected.transpose(2, 0, 1)
        assert np.allclose(buffer.take([0])[0].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_a_delivery_leaves_the_image_as_it_is(layout: str, channels: int) -> None:
    """Also planes, which need no copy: they may be those of a file in memory, or of a cache."""
    image = numbers("uint8", channels)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    results = []
    for given in (image, planes):
        given.flags.writeable = False
        tracer, before = trace(given), given.copy()
        tracer.color("invert")
        tracer.color("equalize")
        buffer = OutputBuffer(1, DeliveryFormat(None, layout, False), BatchMemory(1))
        tracer.program(buffer).run(given, 0)
        assert np.array_equal(given, before)
        results.append(buffer.take([0])[0].numpy())
    assert np.array_equal(*results)
