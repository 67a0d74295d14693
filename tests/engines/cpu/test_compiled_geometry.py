"""Kernels for images of 1 to 4 channels, uint8 and float32: against NumPy and torchvision.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.cpu import compiled_geometry
from helpers.color_stages import create_stage
from helpers.kernel_variants import extension as kernels
from helpers.kernel_variants import variant as variant  # noqa: PLC0414  # a fixture

HEIGHT, WIDTH = 23, 37
SIZES = [(11, 19), (40, 61), (5, 40), (23, 9)]
CASES = [(dtype, channels) for dtype in ("uint8", "float32") for channels in (1, 2, 3, 4)]


def numbers(dtype: str, channels: int, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, channels))
    return values.astype(dtype)


def run(stage: Any, image: Any) -> Any:
    """What a stage makes of an image; the same of its planes."""
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    made = np.asarray(kernels.run_stage(stage, 0, image))
    assert np.array_equal(np.asarray(kernels.run_stage(stage, 0, planes)), made)
    return made


@pytest.mark.parametrize(("dtype", "channels"), CASES)
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_a_delivery_flips_converts_and_erases(layout: str, dtype: str, channels: int) -> None:
    image, rng = numbers(dtype, channels), np.random.default_rng(1)
    shape = {"CHW": (1, channels, HEIGHT, WIDTH), "HWC": (1, HEIGHT, WIDTH, channels)}[layout]
    table = rng.random((channels, 256), np.float32)
    factors = np.stack([np.ones(channels), rng.random(channels), rng.random(channels) + 1])
    factors = factors.astype(np.float32)
    value = rng.random(channels, np.float32)
    converted: dict[Any, Any] = {
        "float32": (image - factors[1]) / factors[2],
        "uint8": np.stack([table[c][image[..., c].astype(np.uint8)] for c in range(channels)], -1),
    }
    corners = (2, 3), (-1, -2), (HEIGHT - 2, WIDTH - 3), (4, WIDTH - 1)
    for (top, left), flips in zip(corners, ([0, 0], [1, 0], [0, 1], [1, 1]), strict=True):
        window = np.array([[top, left, 5, 7]])
        batch = np.zeros(shape, np.float32)
        planes = batch if layout == "CHW" else batch.transpose(0, 3, 1, 2)
        convert = (table, None) if dtype == "uint8" else (None, factors)
        output = (planes, *convert, window, value)
        stage = kernels.deliver_stage(np.array([flips], np.uint8), output)
        assert kernels.run_program(stage, [0], [image]) == []
        expected = converted[dtype][:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]].copy()
        expected[max(top, 0) : top + 5, max(left, 0) : left + 7] = value
        assert np.array_equal(planes[0].transpose(1, 2, 0), expected)
        same = np.zeros(shape, dtype)
        planes = same if layout == "CHW" else same.transpose(0, 3, 1, 2)
        stage = kernels.deliver_stage(np.array([flips], np.uint8), (planes, None, None))
        assert kernels.run_program(stage, [0], [image]) == []
        flipped = image[:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]]
        assert np.array_equal(planes[0].transpose(1, 2, 0), flipped)
        alone = run(kernels.deliver_stage(np.array([flips], np.uint8), None), image)
        assert np.array_equal(alone, flipped)


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_rows_of_any_length_are_flipped(dtype: str, channels: int) -> None:
    stage = kernels.deliver_stage(np.array([[1, 0]], np.uint8), None)
    for width in range(1, 20):
        image = np.ascontiguousarray(numbers(dtype, channels)[:, :width])
        assert np.array_equal(run(stage, image), image[:, ::-1])


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_planes_are_interleaved_at_the_end(dtype: str, channels: int) -> None:
    planes = np.ascontiguousarray(numbers(dtype, channels).transpose(2, 0, 1))
    assert np.array_equal(
        run(kernels.program(()), planes.transpose(1, 2, 0)).transpose(2, 0, 1), planes
    )


def check_output(create: Any, image: Any, expected: Any) -> None:
    """Check what the stage of `create(flips, output)` makes, alone and in batches of any layout."""
    channels, shape = image.shape[2], expected.shape
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    table = np.random.default_rng(2).random((channels, 256), np.float32)
    assert np.array_equal(run(create(None, None), image), expected)
    for flips in ([0, 0], [1, 0], [0, 1], [1, 1]):
        flags = np.array([flips], np.uint8)
        flipped = expected[:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]]
        assert np.array_equal(run(create(flags, None), image), flipped)
        looked_up = [table[c][flipped[..., c].astype(np.uint8)] for c in range(channels)]
        batches = [(np.zeros((1, *shape), image.dtype), None, flipped)]
        if image.dtype == np.uint8:
            batches.append((np.zeros((1, *shape), np.float32), table, np.stack(looked_up, -1)))
        for (batch, own_table, values), pixels in itertools.product(batches, (image, planes)):
            stage = create(flags, (batch.transpose(0, 3, 1, 2), own_table, None))
            assert kernels.run_program(stage, [0], [pixels]) == []
            assert np.array_equal(batch[0], values)
            planar = np.zeros((1, channels, *shape[:2]), batch.dtype)
            stage = create(flags, (planar, own_table, None))
            assert kernels.run_program(stage, [0], [pixels]) == []
            assert np.array_equal(planar[0].transpose(1, 2, 0), values)


@pytest.mark.parametrize(("dtype", "channels"), CASES)
@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_borders_are_those_of_numpy(variant: str, mode: Any, dtype: str, channels: int) -> None:
    """Also borders that are wider than the image, and images whose rows have gaps."""
    image = numbers(dtype, channels)
    for borders in ([1, 2, 3, 4], [0, 0, 22, 0], [9, 0, 9, 0], [60, 0, 0, 90], [0, 0, 0, 0]):
        for pixels in (image, image[3:20, 5:32], image[4:5, 2:3]):
            top, left, bottom, right = borders
            expected = np.pad(pixels, ((top, bottom), (left, right), (0, 0)), mode)
            create = functools.partial(kernels.pad_stage, np.array([borders]), mode)
            check_output(create, pixels, expected)


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_windows_may_leave_the_image(variant: str, dtype: str, channels: int) -> None:
    image = numbers(dtype, channels)
    fill = np.arange(1, channels + 1).astype(dtype)
    canvas = np.empty((HEIGHT + 200, WIDTH + 200, channels), dtype)
    canvas[...] = fill
    canvas[100:-100, 100:-100] = image
    windows = [[-3, -5, 40, 50], [4, 5, 6, 7], [-50, -60, 9, 9], [10, 30, 20, 9], [22, 36, 5, 5]]
    for top, left, height, width in [*windows, [-9, 2, 12, 5], [30, 40, 3, 3], [0, -90, 5, 7]]:
        window = np.array([[top, left, height, width]])
        rows, columns = slice(100 + top, 100 + top + height), slice(100 + left, 100 + left + width)
        create = functools.partial(kernels.window_stage, window, fill.tobytes())
        check_output(create, image, canvas[rows, columns])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_colours_are_changed_before_borders(variant: str, dtype: str, channels: int) -> None:
    image, fill = numbers(dtype, channels), np.ones(channels, dtype)
    changed = run(create_stage([("invert",)]), image)
    windows = kernels.window_stage, np.array([[-2, -3, 32, 42]]), fill.tobytes()
    pads = kernels.pad_stage, np.array([[2, 3, 7, 2]]), "edge"
    for (create, *how), border in ((windows, {"constant_values": 1}), (pads, {"mode": "edge"})):
        expected: Any = np.pad(changed, ((2, 7), (3, 2), (0, 0)), **border)
        batch = np.zeros((1, channels, 32, 42), dtype)
        for output in (None, (batch, None, None)):
            program = kernels.program((create_stage([("invert",)]), create(*how, None, output)))
            own = kernels.run_program(program, [0], [image]) if output else run(program, image)
            made = batch[0].transpose(1, 2, 0) if output else own
            assert np.array_equal(made, expected)


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_rows_become_columns(variant: str, dtype: str, channels: int) -> None:
    for height, width in ((HEIGHT, WIDTH), (1, WIDTH), (HEIGHT, 1), (70, 90), (64, 66), (36, 4)):
        image = np.resize(numbers(dtype, channels), (height, width, channels))
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


def test_what_a_window_cannot_be_is_left_to_python() -> None:
    image = numbers("uint8", 3)
    for window in ([0, 0, 0, 5], [0, 0, 2**40, 5], [2**62, 0, 5, 5]):
        stage = kernels.window_stage(np.array([window]), b"abc", None, None)
        assert kernels.run_stage(stage, 0, image) is None
    of_gray = kernels.window_stage(np.array([[-1, 0, 5, 5]]), b"a", None, None)
    assert kernels.run_stage(of_gray, 0, image) is None
    with pytest.raises(ValueError, match="more than a pixel"):
        kernels.window_stage(np.array([[0, 0, 5, 5]]), bytes(17), None, None)
    with pytest.raises(ValueError, match="edge, reflect or symmetric"):
        kernels.pad_stage(np.array([[0, 0, 5, 5]]), "wrap", None, None)
    slot = np.zeros((1, 3, HEIGHT + 9, WIDTH + 9), np.uint8), None, None
    other_size = kernels.pad_stage(np.array([[4, 5, 6, 4]]), "edge", None, slot)
    assert kernels.run_program(other_size, [0], [image]) == [0]
    assert not slot[0].any()


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_planes_are_delivered_as_pixels_are(variant: str, dtype: str, channels: int) -> None:
    image = numbers(dtype, channels)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    crop = kernels.crop_stage(np.array([[3, 5, 11, 19]]))
    for flips, layout in itertools.product(([0, 0], [1, 1]), ("CHW", "HWC")):
        batch = np.zeros((1, channels, 11, 19) if layout == "CHW" else (1, 11, 19, channels), dtype)
        place = batch if layout == "CHW" else batch.transpose(0, 3, 1, 2)
        deliver = kernels.deliver_stage(np.array([flips], np.uint8), (place, None, None))
        assert kernels.run_program(kernels.program((crop, deliver)), [0], [planes]) == []
        expected = image[3:14, 5:24][:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]]
        assert np.array_equal(place[0].transpose(1, 2, 0), expected)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_a_channel_of_uint8_is_resized_as_one_of_rgb(variant: str, channels: int) -> None:
    image, flips = numbers("uint8", channels), np.array([[1, 0]], np.uint8)
    for size, is_cubic, antialias in itertools.product(SIZES, (False, True), (False, True)):
        whole = np.array([[0, 0, *size]])
        stage = kernels.resize_stage(np.array([size]), whole, flips, is_cubic, antialias, None)
        resized = run(stage, image)
        for c in range(channels):
            rgb = np.repeat(image[..., c : c + 1], 3, 2)
            assert np.array_equal(resized[..., c], run(stage, rgb)[..., 0])


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_resize_of_floats_is_that_of_torchvision(variant: str, channels: int) -> None:
    """Within 5e-6 of the range: torch sums the columns first."""
    image = numbers("float32", channels) / np.float32(255)
    own = torch.from_numpy(image).permute(2, 0, 1)
    for size, mode, antialias in itertools.product(SIZES, ("bilinear", "bicubic"), (False, True)):
        expected = F.resize(own, list(size), InterpolationMode(mode), antialias=antialias)
        window, flips = np.array([[1, 2, size[0] - 1, size[1] - 2]]), np.array([[0, 1]], np.uint8)
        how = mode == "bicubic", antialias, None
        found = run(kernels.resize_stage(np.array([size]), window, flips, *how), image)
        turned = expected[:, 1:, 2:].flip(1).permute(1, 2, 0)
        assert np.abs(found - turned.numpy()).max() < 5e-6, (size, mode, antialias)


def find_warps() -> list[tuple[Any, Any]]:
    """Matrices for pixel indices, affine and of perspective; a fill of the first four channels."""
    turn = np.array([[0.8071, -0.4013, 7.313], [0.5023, 0.9047, -4.127]])
    tilt = np.vstack([turn, [[0.004, -0.006, 1.1]]])
    behind = np.vstack([turn, [[-0.0513, 0.0107, 1.003]]])
    fills = None, np.array([0.0, 0.25, 1.0, 0.5])
    return [(matrix, fill) for matrix in (turn, tilt, behind) for fill in fills]


@pytest.mark.parametrize(("dtype", "channels"), CASES)
def test_a_warp_is_that_of_torch(variant: str, dtype: str, channels: int) -> None:
    """Within a level for uint8, and 1e-4 of the range for floats, of which no nearest is warped."""
    image, scale = numbers(dtype, channels), 255 if dtype == "uint8" else 1
    if dtype == "float32":
        image /= 255
    for matrix, fill in find_warps():
        columns, rows = np.meshgrid(np.arange(40.0), np.arange(29.0))
        points = np.stack([columns, rows, np.ones_like(rows)], -1) @ matrix.T
        points = points[..., :2] / points[..., 2:] if len(matrix) == 3 else points
        grid = torch.tensor((2 * points + 1) / [WIDTH, HEIGHT] - 1)[None]
        own = torch.tensor(np.dstack([image / scale, np.ones((HEIGHT, WIDTH))])).permute(2, 0, 1)
        for mode in ("nearest", "bilinear")[dtype == "float32" :]:
            made = torch.nn.functional.grid_sample(own[None], grid, mode, align_corners=False)[0]
            expected, mask = made[:channels].permute(1, 2, 0), made[channels:].permute(1, 2, 0)
            filled = None if fill is None else fill[:channels] * scale
            if fill is not None:
                expected = (expected - torch.tensor(fill[:channels])) * mask + torch.tensor(
                    fill[:channels]
                )
            size = np.array([[29, 40]])
            stage = kernels.warp_stage(matrix[None], size, mode == "nearest", filled, None)
            apart = np.abs(run(stage, image) / scale - expected.numpy())
            assert apart.max() < (1.01 / 255 if dtype == "uint8" else 1e-4), (matrix, fill, mode)


def test_all_variants_make_the_same_pixels() -> None:
    results: dict[str, list[bytes]] = {}
    for name in kernels.variants():
        kernels.select(name)
        for dtype, channels in CASES:
            image = numbers(dtype, channels)
            fill = np.array([9, 200, 31.4, 0])[:channels]
            stages = [
                kernels.warp_stage(m[None], np.array([[29, 40]]), False, fill, None)
                for m, _ in find_warps()[::2]
            ]
            whole, flips = np.array([[0, 0, *SIZES[0]]]), np.zeros((1, 2), np.uint8)
            stages.append(
                kernels.resize_stage(np.array(SIZES[:1]), whole, flips, False, True, None)
            )
            made = [run(stage, image).tobytes() for stage in stages]
            results.setdefault(name, []).extend(made)
    kernels.select(kernels.variants()[0])
    assert len({tuple(made) for made in results.values()}) == 1


def test_a_stage_refuses_what_it_cannot_do() -> None:
    image, size = numbers("uint8", 2), np.array([[5, 5]])
    identity = np.eye(3)[None, :2]
    for fill in ([1.0, 2.0, 3.0], [1.0, 256.0]):
        stage = kernels.warp_stage(identity, size, False, np.array(fill), None)
        assert kernels.run_stage(stage, 0, image) is None
    for wrong, message in (([np.inf], "finite"), ([0.0] * 5, "1 to 4 channels")):
        with pytest.raises(ValueError, match=message):
            kernels.warp_stage(identity, size, False, np.array(wrong), None)
    with pytest.raises(ValueError, match="the matrices are not"):
        kernels.warp_stage(np.eye(4)[None], size, False, None, None)
    one_for_all = np.lib.stride_tricks.as_strided(image, image.shape, (74, 1, 0))
    assert kernels.run_stage(kernels.program(()), 0, one_for_all) is None
    batch = np.zeros((1, 2, HEIGHT, WIDTH), np.float32)
    stage = kernels.deliver_stage(None, (batch, None, None))
    assert kernels.run_program(stage, [0], [image]) == [0]
    for channels, dtype, message in ((5, "uint8", "1 to 4 channels"), (2, "float64", "a table")):
        batch = np.zeros((1, channels, HEIGHT, WIDTH), dtype)
        with pytest.raises(ValueError, match=message):
            kernels.deliver_stage(None, (batch, None, None))


def test_the_rules_are_those_of_a_machine_with_the_extension() -> None:
    assert compiled_geometry.create_rules()
