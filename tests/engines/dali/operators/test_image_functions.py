"""torchvision's colour functions in DALI, on made images."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types
from torchvision.transforms.v2 import functional as F

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.dataset.spec import Spec
from gpupipe.engines.dali.operators.image import ImageTracer
from gpupipe.engines.dali.operators.image_functions import FUNCTIONS
from gpupipe.pipeline.spec_checks import IMAGE_DTYPES
from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.pipeline.tensors import in_float32
from helpers.dali_nodes import check_runs_on_gpu, graph_of

SIZES = [(40, 50), (90, 61), (37, 31), (16, 99), (1, 1), (2, 7), (3, 3)]
COUNT = len(SIZES)
UINT8_ONLY = ("posterize", "solarize_add", "equalize", "jpeg")
FACTORS = np.array([0.0, 0.5, 1.0, 1.9, 2.0, 0.3, 3.0])
VALUES: dict[str, tuple[NDArray[Any], ...]] = {
    "invert": (),
    "posterize": (np.array([0, 3, 8, 4, 7, 1, 2]),),
    "solarize": (np.array([0.0, 128.0, 255.0, 77.5, 1.0, 200.0, 128.0]),),
    **dict.fromkeys(
        ("scale_and_shift", "scale_and_shift_by_mean"), (FACTORS, np.linspace(-0.8, 0.8, COUNT))
    ),
    "solarize_add": (np.array([0, 128, 77, 1, 110, 30, 127]),),
    "autocontrast": (),
    "equalize": (),
    "adjust_brightness": (FACTORS,),
    "adjust_contrast": (FACTORS,),
    "adjust_saturation": (FACTORS,),
    "adjust_hue": (np.array([-0.5, -0.11, 0.0, 0.33, 0.5, 0.05, -0.25]),),
    "adjust_sharpness": (FACTORS,),
    "gaussian_blur": (
        np.array([[3, 5], [5, 5], [7, 1], [23, 3], [1, 1], [5, 3], [5, 5]]),
        np.array([[0.5, 1], [2, 2], [1, 0.1], [0.1, 9], [1, 1], [1, 1], [3, 2]]),
    ),
    "jpeg": (np.array([90, 50, 10, 100, 75, 1, 30]),),
    "permute_channels": (
        np.array([[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0], [0, 2, 1], [1, 0, 2], [2, 0, 1]]),
    ),
}
VALUES |= {
    name: tuple(np.linspace(value.min, min(value.max, 3.0), COUNT) for value in op.values)
    for name, op in COLOR_OPS.items()
    if name not in VALUES and op.formula is not None
}
EXACT = ("invert", "posterize", "solarize", "solarize_add", "permute_channels", "jpeg")


def iter_kinds(op: str) -> Iterator[tuple[str, int]]:
    """The dtypes and counts of channels of the images for an operation."""
    for dtype in IMAGE_DTYPES:
        if dtype == "uint8" or op not in UINT8_ONLY:
            yield dtype, 1
            yield dtype, 3


def images(dtype: str, channels: int) -> list[NDArray[Any]]:
    """Noise with gray parts, a ramp, half of the range, one channel that is flat; tiny images."""
    rng = np.random.default_rng(3)
    made = [rng.integers(0, 256, (*size, channels)).astype(np.uint8) for size in SIZES]
    made[0][:20] = made[0][:20, :, :1]
    made[1] = (made[1] // 9 + np.arange(90)[:, None, None] * 2).astype(np.uint8)
    made[2] = made[2] // 2 + 20
    made[3][..., -1] = 7
    return made if dtype == "uint8" else [(image / 255).astype(dtype) for image in made]


def values_of(op: str, dtype: str, channels: int) -> tuple[NDArray[Any], ...]:
    if op == "solarize" and dtype != "uint8":
        return (VALUES[op][0] / 255,)
    if op == "permute_channels" and channels == 1:
        return (np.zeros((COUNT, 1), np.int32),)
    return VALUES[op]


def source(arrays: list[NDArray[Any]]) -> Callable[[], list[NDArray[Any]]]:
    return lambda: arrays


def node_of(arrays: list[NDArray[Any]], device: str = "cpu", layout: str = "") -> Any:
    dtype, ndim = types.to_dali_type(str(arrays[0].dtype)), arrays[0].ndim
    return fn.external_source(source(arrays), dtype=dtype, ndim=ndim, layout=layout, device=device)


def graph(
    op: str, pixels: list[NDArray[Any]], values: Any, device: Literal["cpu", "gpu"] = "cpu"
) -> Any:
    """The node that a function makes of images, in the pipeline that is open."""
    image = ImageTracer(np.array([p.shape[:2] for p in pixels], np.float64), device)
    image.spec = Spec.of_image(pixels[0].shape[-1], dtype=str(pixels[0].dtype))
    image.color(op, *values)
    node = node_of(pixels, device, "HWC")
    return graph_of(image, node, lambda array: node_of(list(array)))


def made_by_dali(op: str, pixels: list[NDArray[Any]], values: Any) -> list[NDArray[Any]]:
    pipe = Pipeline(batch_size=len(pixels), num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(graph(op, pixels, values))
    (output,) = pipe.run()
    return [np.array(output[n]) for n in range(len(pixels))]


def solarize_add(image: torch.Tensor, levels: int) -> torch.Tensor:
    """timm's function, which torchvision does not have."""
    return torch.where(image < 128, image + levels, image)


def made_by_torchvision(op: str, pixels: NDArray[Any], values: list[Any]) -> NDArray[Any]:
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    arguments = [value.tolist() for value in values]
    function: Any = solarize_add if op == "solarize_add" else getattr(F, op, None)
    function = function or COLOR_OPS[op].reference
    made = in_float32(image, lambda x: function(x, *arguments))
    return made.permute(1, 2, 0).numpy()


def tolerance(op: str, dtype: str) -> float:
    if dtype == "uint8":
        exact = op in EXACT
        return 0 if exact else 1
    return 2e-6 if dtype == "float32" else 2.0**-10


def test_every_function_is_in_the_table() -> None:
    """But those that DALI computes by their formula."""
    with_formula = {name for name, op in COLOR_OPS.items() if op.formula is not None}
    assert COLOR_OPS.keys() == FUNCTIONS.keys() | with_formula == VALUES.keys()


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
@pytest.mark.parametrize("op", VALUES)
def test_it_is_within_a_level_of_torchvision(op: str) -> None:
    for dtype, channels in iter_kinds(op):
        pixels, values = images(dtype, channels), values_of(op, dtype, channels)
        if op == "gaussian_blur":  # it refuses smaller images
            is_small = [[n in (4, 5, 6)] * 2 for n in range(COUNT)]
            values = (np.where(is_small, 1, values[0]), values[1])
        made = made_by_dali(op, pixels, values)
        for n, (found, given) in enumerate(zip(made, pixels, strict=True)):
            expected = made_by_torchvision(op, given, [value[n] for value in values])
            case = (dtype, channels, SIZES[n], [value[n] for value in values])
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), case
            most = np.abs(found.astype(np.float64) - expected).max()
            assert most <= tolerance(op, dtype), case


@pytest.mark.parametrize("op", VALUES)
def test_it_changes_something(op: str) -> None:
    """But the colours of an image of one channel."""
    colored = ("adjust_saturation", "adjust_hue", "permute_channels")
    for dtype, channels in iter_kinds(op):
        pixels, values = images(dtype, channels)[:4], values_of(op, dtype, channels)
        made = made_by_dali(op, pixels, [value[:4] for value in values])
        changed = any((a != b).any() for a, b in zip(made, pixels, strict=True))
        assert changed == (channels == 3 or op not in colored), (dtype, channels)


@pytest.mark.parametrize("op", ["contrast", "saturation", "sharpness", "brightness"])
@pytest.mark.parametrize("factor", [7.0, 1e7])
def test_a_large_factor_clamps(op: str, factor: float) -> None:
    """A saturation multiplies the rounding of single lumas that are nearly whole."""
    (given,) = images("uint8", 3)[:1]
    (found,) = made_by_dali(f"adjust_{op}", [given], [np.array([factor])])
    expected = made_by_torchvision(f"adjust_{op}", given, [np.float64(factor)])
    differs = np.abs(found.astype(int) - expected) > 1
    assert differs.mean() < (0.002 if op == "saturation" else 1e-9)


def test_a_blur_refuses_images_smaller_than_its_border() -> None:
    """As torchvision does; before the graph runs, where the arguments are computed."""
    size = np.array([[40.0, 50.0], [2.0, 50.0]])
    image = ImageTracer(size, "cpu")
    image.spec = Spec.of_image(3)
    image.color("gaussian_blur", np.array([[5, 3]] * 2), np.ones((2, 2)))
    with pytest.raises(SampleIncompatibleError, match=r"needs at least 3x2 pixels, .* has 2x50"):
        image.color("gaussian_blur", np.array([[3, 5]] * 2), np.ones((2, 2)))


@pytest.mark.parametrize("op", VALUES)
def test_the_graph_for_a_gpu_is_built_of_operators_that_run_there(op: str) -> None:
    """As nodes: no GPU is needed for that. Only arguments and their arithmetic stay on the CPU."""
    for dtype, channels in iter_kinds(op):
        with Pipeline(batch_size=COUNT, num_threads=1, device_id=None):
            node = graph(op, images(dtype, channels), values_of(op, dtype, channels), "gpu")
        check_runs_on_gpu(node)
