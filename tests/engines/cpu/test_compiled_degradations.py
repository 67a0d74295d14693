"""Noise, elastic transforms and the JPEG codec of the extensions: every variant to the bit, the
pixels of the reference, memory that is not theirs, and refusals.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from fuzz.fenced_memory import FencedMemory
from gpupipe.augment import noise, random_fields
from gpupipe.augment.elastic import Elastic, make_displacement
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.compiled_degradations import create_rules
from gpupipe.engines.cpu.pixels import view_as_array
from gpupipe.engines.cpu.program import Program, Rules
from gpupipe.pipeline.step import Spec
from helpers.kernel_variants import extension
from helpers.kernel_variants import variant as variant  # noqa: PLC0414  # a fixture

jpeg = pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
SIZES = [(1, 1), (1, 9), (9, 1), (2, 2), (3, 2), (7, 40), (33, 17), (64, 65)]
SEEDS = np.array([2**53 - 1, 0, 77])
ELASTIC = Elastic((40.0, 25.0), (0.4, 0.3))


def images(dtype: str) -> Iterator[NDArray[Any]]:
    """Images of 1 to 4 channels, some with gaps between their rows, the last byte at the end of
    memory that may be read.
    """
    rng = np.random.default_rng(0)
    for n, (height, width) in enumerate(SIZES):
        channels, gap = n % 4 + 1, 8 * (n % 2)
        item = np.dtype(dtype).itemsize
        stride = width * channels * item + gap
        memory = FencedMemory(height * stride)
        data = memory.take((height * stride - gap,), is_last=True)
        data[:] = rng.integers(0, 256, len(data), np.uint8)
        pixels = np.lib.stride_tricks.as_strided(
            data.view(dtype), (height, width, channels), (stride, channels * item, item)
        )
        if dtype == "float32":
            pixels[...] = rng.random(pixels.shape, np.float32)
        yield pixels
        del memory


def run(stage: Any, image: Any, row: int = 0) -> NDArray[Any] | None:
    pixels = extension.run_stage(stage, row, image)
    return None if pixels is None else np.asarray(pixels)


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 70_000, 150_000])
def test_all_variants_draw_the_numbers_of_the_reference(variant: str, count: int) -> None:
    for seed in (0, -1, 2**53 - 1, 12345):
        normal, uniform = np.empty(count, np.float32), np.empty(count, np.float32)
        extension.normal_field(seed, normal)
        extension.uniform_field(seed, uniform)
        assert normal.tobytes() == random_fields.draw_normal(seed, count).tobytes()
        assert uniform.tobytes() == random_fields.draw_uniform(seed, count).tobytes()


@pytest.mark.parametrize("sigma", [(5.0, 5.0), (0.5, 2.0), (0.0, 0.0), (0.1, 7.0)])
def test_all_variants_make_the_displacements_of_the_reference(
    variant: str, sigma: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic = Elastic((50.0, 20.0), sigma)
    for height, width in ((40, 131), (64, 64), (31, 32)):
        made = np.empty((height, width, 2), np.float32)
        extension.displacement(5, elastic.arguments, made)
        with monkeypatch.context() as patch:
            patch.setattr(noise, "find_kernels", lambda: None)
            expected = make_displacement(5, (height, width), elastic)
        assert made.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("how", [(0.0, 0.1), (-0.2, 3.0), (3.0, 1e300)], ids=str)
def test_all_variants_add_the_noise_of_the_reference(
    variant: str, dtype: str, how: tuple[float, float]
) -> None:
    for image in images(dtype):
        before = image.copy()
        for clip in (True, False):
            stage = extension.noise_stage(SEEDS, *noise.scale_noise(*how, dtype), clip)
            values = noise.make_noise(int(SEEDS[2]), image.shape, dtype, *how)
            expected = image + values
            if clip or dtype == "uint8":
                expected = np.clip(expected, 0, 255 if dtype == "uint8" else 1)
            made = run(stage, image, 2)
            assert made is not None
            assert np.array_equal(made, expected.astype(dtype))
        assert np.array_equal(image, before), "the memory of another is not changed"


def test_noise_leaves_no_trace_of_what_is_no_number(variant: str) -> None:
    image = np.array([[[np.nan, np.inf, -np.inf, 0.5]]], np.float32)
    stage = extension.noise_stage(SEEDS, 0.0, 0.0, True)
    made = run(stage, image)
    assert made is not None
    assert np.isnan(made[0, 0, 0])
    assert made[0, 0, 1:].tolist() == [1.0, 0.0, 0.5]


def draw_window(seed: int, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    return random_fields.draw_normal(seed, int(np.prod(shape))).reshape(shape)


def test_all_variants_fill_windows_with_the_noise_of_the_reference(variant: str) -> None:
    for image in images("float32"):
        height, width, channels = image.shape
        top, left, before = height // 3, width // 3, image.copy()
        window = height - top, width - left
        stage = extension.noise_window_stage(np.array([[top, left, *window]] * 3), SEEDS, None)
        expected = image.copy()
        expected[top:, left:] = draw_window(int(SEEDS[2]), (*window, channels))
        planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
        for source in (image, planes):
            assert np.array_equal(run(stage, source, 2), expected)  # type: ignore[arg-type]
        assert np.array_equal(image, before), "the memory of another is not changed"
        empty = extension.noise_window_stage(np.array([[5, 5, 0, 4]] * 3), SEEDS, None)
        assert np.array_equal(run(empty, image, 1), image)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_variants_fill_windows_of_slots(variant: str, dtype: str, layout: str) -> None:
    """Rounded as torch rounds them."""
    kind = getattr(torch, dtype)
    for height, width in SIZES:
        for channels in (1, 2, 3, 4):
            window = [height // 2, width // 2, height - height // 2, width - width // 2]
            planes = torch.full((3, channels, height, width), 9, dtype=kind)
            pixels = torch.full((3, height, width, channels), 9, dtype=kind)
            batch = planes if layout == "CHW" else pixels.permute(0, 3, 1, 2)
            table = None if dtype == "float32" else np.zeros((channels, 256), np.int16)
            stage = extension.noise_window_stage(
                np.array([window] * 3), SEEDS, (view_as_array(batch), table, None)
            )
            image = np.zeros((height, width, channels), np.uint8)
            assert extension.run_program(stage, [0, 1], [image, image]) == []
            for row, seed in enumerate(SEEDS.tolist()):
                expected = torch.full((height, width, channels), 9, dtype=kind)
                if row < 2:
                    drawn = draw_window(seed, (*window[2:], channels))
                    expected[window[0] :, window[1] :] = torch.from_numpy(drawn).to(kind)
                assert torch.equal(batch[row].permute(1, 2, 0), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rare_numbers_are_rounded_as_torch_rounds_them(dtype: str) -> None:
    """Those below 2**-14, which float16 holds with fewer bits, and those half-way in bfloat16."""
    count, kind = 1 << 18, getattr(torch, dtype)
    drawn = torch.from_numpy(random_fields.draw_normal(0, count))
    assert int((drawn.abs() < 2.0**-14).sum()) > 5
    assert ((drawn.view(torch.int32) & 0x1FFFF) == 0x8000).any()
    batch = torch.zeros(1, 1, 1, count, dtype=kind)
    output = view_as_array(batch), np.zeros((1, 256), np.int16), None
    stage = extension.noise_window_stage(np.array([[0, 0, 1, count]]), SEEDS[1:2], output)
    assert extension.run_program(stage, [0], [np.zeros((1, 1, 1), np.uint8)]) == []
    assert torch.equal(batch[0, 0, 0], drawn.to(kind))


def test_windows_that_take_no_noise_are_left_to_python() -> None:
    image, seed = np.zeros((8, 9, 3), np.float32), SEEDS[:1]
    for window in ([-1, 0, 5, 5], [0, 0, 9, 5], [0, 2**62, 5, 2**62], [0, 5, 2, 5]):
        assert run(extension.noise_window_stage(np.array([window]), seed, None), image) is None
    inside = np.array([[0, 0, 5, 5]])
    stage = extension.noise_window_stage(inside, seed, None)
    assert run(stage, image.astype(np.uint8)) is None


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("fill", [(0.0,), (9.0, 100.0, 255.0, 3.0)], ids=str)
def test_all_variants_move_pixels_as_torchvision(
    variant: str, interpolation: str, dtype: str, fill: tuple[float, ...]
) -> None:
    """But for the last bit of a coordinate: torch computes those in vectors."""
    tested = 0
    for image in images(dtype):
        height, width, channels = image.shape
        if ELASTIC.explain_small(np.array([height, width])):
            continue
        stage = elastic_stage(ELASTIC, fill, interpolation)
        moves = torch.from_numpy(make_displacement(int(SEEDS[1]), (height, width), ELASTIC))
        planes = torch.from_numpy(image.copy()).permute(2, 0, 1)
        values = list(fill[:channels])
        mode = InterpolationMode(interpolation)
        expected = F.elastic(planes, moves[None], mode, values).permute(1, 2, 0)
        made = run(stage, image, 1)
        assert made is not None
        difference = (torch.from_numpy(made).double() - expected.double()).abs()
        scale = max(1.0, *fill) if dtype == "float32" else 1.0
        tolerance = 1.0 if dtype == "uint8" else 1e-5 * scale
        assert float((difference > 0).double().mean()) < 0.01 or dtype == "float32"
        assert interpolation == "nearest" or float(difference.max()) <= tolerance
        tested += 1
    assert tested == 3


def elastic_stage(
    elastic: Elastic, fill: tuple[float, ...] = (0.0,), interpolation: str = "bilinear"
) -> Any:
    values = tuple(np.resize(fill, 4).tolist())
    return extension.elastic_stage(SEEDS, elastic.arguments, interpolation == "bilinear", values)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_all_variants_move_pixels_to_the_same_bits(variant: str, dtype: str) -> None:
    for elastic in (ELASTIC, Elastic((1e4, 1e4), (0.0, 0.0)), Elastic((0.0, 0.0), (0.4, 0.4))):
        for image in images(dtype):
            extension.select("scalar")
            expected = run(elastic_stage(elastic), image)
            extension.select(variant)
            made = run(elastic_stage(elastic), image)
            assert (made is None) == (expected is None)
            if made is None or expected is None:
                assert elastic.explain_small(np.array(image.shape[:2]))
            else:
                assert made.tobytes() == expected.tobytes()


def test_no_displacement_moves_nothing() -> None:
    (image,) = (image for image in images("uint8") if image.shape[:2] == (64, 65))
    made = run(elastic_stage(Elastic((0.0, 0.0), (1.0, 1.0))), image)
    assert np.array_equal(made, image)  # type: ignore[arg-type]


@pytest.mark.parametrize("quality", [1, 50, 75, 100])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_codec_makes_the_pixels_of_pillow(quality: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    for height, width in (*SIZES, (200, 301)):
        pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
        smooth = Image.fromarray(np.tile(pixels, (1, 1, 3 // channels))).resize((width, height), 3)
        for image in (pixels, np.asarray(smooth)[..., :channels].copy()):
            stage = jpeg.jpeg_stage(np.array([50, quality], np.int64))
            encoded = io.BytesIO()
            picture = Image.fromarray(image[..., 0] if channels == 1 else image)
            picture.save(encoded, "JPEG", quality=quality)
            expected = np.array(Image.open(encoded)).reshape(image.shape)
            assert np.array_equal(run(stage, image, 1), expected)  # type: ignore[arg-type]


def test_what_no_jpeg_holds_is_left_to_python() -> None:
    stage = jpeg.jpeg_stage(np.array([50], np.int64))
    assert run(stage, np.zeros((2, 70_000, 3), np.uint8)) is None, "too wide"
    for shape, dtype in (((4, 5, 2), "uint8"), ((4, 5, 4), "uint8"), ((4, 5, 3), "float32")):
        assert run(stage, np.zeros(shape, dtype)) is None


FIELD = np.empty((30, 30, 2), np.float32)
KERNEL = np.ones((2, 1), np.float32)
WINDOWS = np.array([[0, 0, 2, 2]] * 3)


def output(dtype: str, rows: int = 3) -> Any:
    return np.zeros((rows, 3, 4, 5), dtype), np.zeros((3, 256), dtype), None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: jpeg.jpeg_stage(np.array([0])), "a quality is not 1 to 100"),
        (lambda: jpeg.jpeg_stage(np.array([50, 101])), "a quality is not 1 to 100"),
        (lambda: jpeg.jpeg_stage(np.array([50], np.int32)), "qualities"),
        (lambda: extension.noise_stage(SEEDS.astype(float), 1.0, 0.0, True), "seeds"),
        (lambda: extension.noise_stage(SEEDS[::2], 1.0, 0.0, True), "seeds"),
        (lambda: extension.noise_window_stage(WINDOWS[:2], SEEDS, None), "number of rows"),
        (lambda: extension.noise_window_stage(WINDOWS, SEEDS.astype(float), None), "seeds"),
        (lambda: extension.noise_window_stage(WINDOWS, SEEDS, output("uint8")), "bfloat16"),
        (lambda: extension.noise_window_stage(WINDOWS, SEEDS, output("float64")), "bfloat16"),
        (lambda: extension.noise_window_stage(WINDOWS, SEEDS, output("float32", 2)), "rows"),
        (lambda: extension.normal_field(1, np.empty(4, np.float64)), "not of float32"),
        (lambda: extension.displacement(1, ((1, 1), KERNEL, KERNEL), FIELD[0]), "3"),
        (lambda: extension.displacement(1, ((1, 1), KERNEL, KERNEL), FIELD[..., :1]), "field"),
        (lambda: extension.displacement(1, ((1, 1), KERNEL[:1], KERNEL), FIELD), "kernel"),
        (lambda: extension.displacement(1, ((1, 1), KERNEL[:, :0], KERNEL), FIELD), "kernel"),
        (
            lambda: extension.displacement(
                1, ((1, 1), KERNEL, np.ones((2, 31), np.float32)), FIELD
            ),
            "smaller than the blur",
        ),
    ],
)
def test_other_arguments_are_refused(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_the_kernels_are_chosen_for_the_dtypes_that_they_take() -> None:
    rules = Rules(create_rules())
    for dtype, is_taken in (("uint8", True), ("float32", True), ("float16", False)):
        spec = Spec.of_image(3, dtype=dtype)
        for op in (
            ops.AddNoiseOp("step", spec, SEEDS, 0.0, 0.1, True),
            ops.ElasticOp("step", spec, SEEDS, ELASTIC, "bilinear", (0.0,)),
        ):
            assert (rules.find([op]) is not None) == is_taken
    codec = ops.ColorOp("step", Spec.of_image(3), "jpeg", [np.array([50, 60], np.int32)])
    made = Program([codec], rules).run(np.full((8, 9, 3), 128, np.uint8), 1)
    assert np.array_equal(made, np.full((8, 9, 3), 128))
