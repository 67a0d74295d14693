"""The reference kernels: what each makes of one sample, against NumPy and torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.cpu.kernels import TABLE, crop
from gpupipe.engines.cpu.program import Call, Program
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import SampleIncompatible, Spec

SPEC = Spec(encoded=False, channels=3, dtype="uint8")
IMAGE: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)


def run_call(
    primitive: str, options: Any, row: Any, image: Any = IMAGE, branches: Any = ()
) -> NDArray[Any]:
    """What the preferred kernel of one primitive makes of an image, as (H, W, C)."""
    call = Call(primitive, "step", SPEC, options, [row], branches)
    made = Program([call], TABLE).run(image, 0)
    return made.permute(1, 2, 0).numpy() if isinstance(made, torch.Tensor) else np.asarray(made)


def as_tensor(image: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)


def as_image(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.permute(1, 2, 0).numpy()


def test_each_primitive_has_a_kernel() -> None:
    names = {name for name in vars(Primitives) if not name.startswith("_")}
    single = {group[0] for group in TABLE if len(group) == 1}
    # what the recorder answers itself, or joins to others
    others = {"size", "width_height", "present", "apply", "warp", "perspective"}
    assert names - single - others == set()


def test_a_crop_is_a_window_and_what_lies_outside_has_the_fill() -> None:
    assert np.array_equal(run_call("crop", None, [1, 2, 3, 4]), IMAGE[1:4, 2:6])
    made = run_call("crop", (7.0, 8.0, 9.0), [-1, 0, 3, 9])
    assert (made[0] == [7, 8, 9]).all()
    assert np.array_equal(made[1:], IMAGE[:2])


@pytest.mark.parametrize(
    ("window", "words"),
    [([0, 0, 7, 2], "7x2"), ([4, 0, 3, 3], r"window of 3x3 pixels at \[4, 0\].*6x9")],
)
def test_a_window_outside_of_the_image_is_the_samples_fault(window: Any, words: str) -> None:
    with pytest.raises(SampleIncompatible, match=words):
        crop(IMAGE, window, None)


def test_a_flip_is_along_width_and_height() -> None:
    assert np.array_equal(run_call("flip", (), [1, 0]), IMAGE[:, ::-1])
    assert np.array_equal(run_call("flip", (), [0, 1]), IMAGE[::-1])
    assert np.array_equal(run_call("flip", (), [0, 0]), IMAGE)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_a_resize_is_torchvisions(interpolation: str, antialias: bool) -> None:
    mode = F.InterpolationMode(interpolation)
    expected = F.resize(as_tensor(IMAGE), [4, 5], mode, antialias=antialias)
    assert np.array_equal(
        run_call("resize", (interpolation, antialias), [4, 5]), as_image(expected)
    )


def test_a_border_and_an_erased_window() -> None:
    padded = run_call("pad", "reflect", [1, 2, 0, 3])
    expected = F.pad(as_tensor(IMAGE), [2, 1, 3, 0], padding_mode="reflect")
    assert np.array_equal(padded, as_image(expected))
    before = IMAGE.copy()
    erased = run_call("erase", (1.0, 2.0, 3.0), [1, 1, 2, 3])
    assert (erased[1:3, 1:4] == [1, 2, 3]).all()
    assert np.array_equal(erased[3:], IMAGE[3:])
    assert np.array_equal(IMAGE, before), "the input stays as it is"
    assert np.array_equal(run_call("erase", (0.0,), [1, 1, 0, 3]), IMAGE)


def test_added_numbers_are_clipped_to_the_range_of_pixels() -> None:
    noise = np.full(IMAGE.shape, 100.0, np.float32)
    assert np.array_equal(run_call("add", True, noise), np.clip(IMAGE.astype(int) + 100, 0, 255))
    levels = IMAGE.astype(np.float32) / 255
    assert run_call("add", True, noise / 255, levels).max() == 1.0
    assert run_call("add", False, noise / 255, levels).max() > 1.0


def test_a_matrix_mixes_colors_and_truncates_as_torchvision_does() -> None:
    matrix = np.array([[0.5, 0.25, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    expected = np.clip(IMAGE.astype(np.float32) @ matrix.astype(np.float32).T, 0, 255)
    assert np.array_equal(run_call("color_matrix", (), matrix), expected.astype(np.uint8))


def test_a_color_function_gets_its_values_and_gray_has_no_channels_to_permute() -> None:
    expected = F.adjust_brightness(as_tensor(IMAGE), 0.7)
    assert np.array_equal(run_call("color", "adjust_brightness", (0.7,)), as_image(expected))
    gray = IMAGE[..., :1]
    assert np.array_equal(run_call("color", "permute_channels", ([2, 0, 1],), gray), gray)


def test_a_switch_runs_one_branch_and_a_blend_weighs_all() -> None:
    same = Program([], TABLE)
    flipped = Program([Call("flip", "step", SPEC, (), [[1, 0]])], TABLE)
    assert np.array_equal(run_call("switch", (), 0, branches=(same, flipped)), IMAGE)
    assert np.array_equal(run_call("switch", (), 1, branches=(same, flipped)), IMAGE[:, ::-1])
    mixed = run_call("blend", (), [0.25, 0.75], branches=(same, flipped))
    expected = np.float32(0.25) * IMAGE + np.float32(0.75) * IMAGE[:, ::-1]
    assert np.array_equal(mixed, expected.astype(np.uint8))


def test_numbers_are_converted_and_normalized_as_the_steps_do() -> None:
    levels = run_call("to_dtype", ("float32", True), None)
    assert np.array_equal(levels, as_image(F.to_dtype(as_tensor(IMAGE), torch.float32, scale=True)))
    made = run_call("normalize", ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), None, levels)
    expected = F.normalize(as_tensor(levels), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    assert np.allclose(made, as_image(expected), atol=1e-6)


def test_a_function_of_torch_is_called_with_channels_first() -> None:
    shapes = []

    def halve(image: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(image.shape))
        return image // 2

    assert np.array_equal(run_call("call_torch", halve, None), IMAGE // 2)
    assert shapes == [(3, 6, 9)]
