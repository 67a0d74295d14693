"""The reference kernels: what each makes of one sample, against NumPy and torchvision."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from gpupipe.augment.noise import make_noise, normal_field
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.delivery import DeliverOp
from gpupipe.engines.cpu.kernels import RULES
from gpupipe.engines.cpu.patterns import match_pattern
from gpupipe.engines.cpu.program import BlendOp, Program, Rules, SwitchOp
from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import SampleIncompatibleError, Spec

SPEC = Spec.of_image(3)
OTHERS = (SwitchOp, BlendOp, DeliverOp)
IMAGE: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)


def run_op(kind: type[ops.Op], *arguments: Any, image: Any = IMAGE) -> NDArray[Any]:
    """What the preferred kernel of one operation makes of an image, as (H, W, C)."""
    made = Program([kind("step", SPEC, *arguments)], Rules(RULES)).run(image, 0)
    return made.permute(1, 2, 0).numpy() if isinstance(made, torch.Tensor) else np.asarray(made)


def as_tensor(image: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)


def as_image(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.permute(1, 2, 0).numpy()


def test_each_primitive_has_a_kernel() -> None:
    names = {name for name in vars(Primitives) if not name.startswith("_")}
    kinds = [k for k in (*vars(ops).values(), *OTHERS) if isinstance(k, type)]
    kinds = [kind for kind in kinds if issubclass(kind, ops.Op)]
    single = {
        op.primitive
        for op in (kind.__new__(kind) for kind in kinds)
        if any(match_pattern(rule.pattern, [op]) for rule in RULES)
    }
    # what the tracer answers itself, or what runs in torch without a faster kernel
    others = {"size", "width_height", "present", "apply", "warp", "perspective"}
    assert names - single - others == set()
    assert single >= {"torch", "check", "deliver"}


def test_a_crop_is_a_window_and_what_lies_outside_has_the_fill() -> None:
    assert np.array_equal(run_op(ops.CropOp, np.array([[1, 2, 3, 4]]), None), IMAGE[1:4, 2:6])
    made = run_op(ops.CropOp, np.array([[-1, 0, 3, 9]]), (7.0, 8.0, 9.0))
    assert (made[0] == [7, 8, 9]).all()
    assert np.array_equal(made[1:], IMAGE[:2])


@pytest.mark.parametrize(
    ("window", "words"),
    [([0, 0, 7, 2], "7x2"), ([4, 0, 3, 3], r"window of 3x3 pixels at \[4, 0\].*6x9")],
)
def test_a_window_outside_of_the_image_is_the_samples_fault(window: Any, words: str) -> None:
    with pytest.raises(SampleIncompatibleError, match=words):
        run_op(ops.CropOp, np.array([window]), None)


def test_a_flip_is_along_width_and_height() -> None:
    assert np.array_equal(run_op(ops.FlipOp, np.array([[1, 0]])), IMAGE[:, ::-1])
    assert np.array_equal(run_op(ops.FlipOp, np.array([[0, 1]])), IMAGE[::-1])
    assert np.array_equal(run_op(ops.FlipOp, np.array([[0, 0]])), IMAGE)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_a_resize_is_torchvisions(interpolation: str, antialias: bool) -> None:
    mode = F.InterpolationMode(interpolation)
    expected = F.resize(as_tensor(IMAGE), [4, 5], mode, antialias=antialias)
    assert np.array_equal(
        run_op(ops.ResizeOp, np.array([[4, 5]]), interpolation, antialias), as_image(expected)
    )


def test_a_border_and_an_erased_window() -> None:
    padded = run_op(ops.PadOp, np.array([[1, 2, 0, 3]]), "reflect")
    expected = F.pad(as_tensor(IMAGE), [2, 1, 3, 0], padding_mode="reflect")
    assert np.array_equal(padded, as_image(expected))
    before = IMAGE.copy()
    erased = run_op(ops.EraseOp, np.array([[1, 1, 2, 3]]), (1.0, 2.0, 3.0))
    assert (erased[1:3, 1:4] == [1, 2, 3]).all()
    assert np.array_equal(erased[3:], IMAGE[3:])
    assert np.array_equal(IMAGE, before), "the input stays as it is"
    assert np.array_equal(run_op(ops.EraseOp, np.array([[1, 1, 0, 3]]), (0.0,)), IMAGE)


def test_noise_is_clipped_to_the_range_of_pixels() -> None:
    seeds, image = np.array([7]), IMAGE.astype(np.float32) / 255
    noise = make_noise(7, IMAGE.shape, "uint8", 0.1, 0.5)
    assert np.array_equal(
        run_op(ops.AddNoiseOp, seeds, 0.1, 0.5, True), np.clip(IMAGE + noise, 0, 255)
    )
    clipped = run_op(ops.AddNoiseOp, seeds, 0.1, 0.5, True, image=image)
    plain = run_op(ops.AddNoiseOp, seeds, 0.1, 0.5, False, image=image)
    assert plain.max() > 1
    assert np.array_equal(clipped, np.clip(plain, 0, 1))


def test_an_erased_window_may_be_filled_with_noise() -> None:
    image = IMAGE.astype(np.float32)
    erased = run_op(ops.EraseOp, np.array([[1, 1, 2, 3]]), (0.0,), np.array([7]), image=image)
    assert np.array_equal(erased[1:3, 1:4], normal_field(7, (2, 3, 3)))
    assert np.array_equal(erased[3:], image[3:])


def test_a_matrix_mixes_colors_and_truncates_as_torchvision_does() -> None:
    matrix = np.array([[0.5, 0.25, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    expected = np.clip(IMAGE.astype(np.float32) @ matrix.astype(np.float32).T, 0, 255)
    assert np.array_equal(run_op(ops.ColorMatrixOp, matrix[None]), expected.astype(np.uint8))


def test_a_color_function_gets_its_values_and_gray_has_no_channels_to_permute() -> None:
    expected = F.adjust_brightness(as_tensor(IMAGE), 0.7)
    assert np.array_equal(
        run_op(ops.ColorOp, "adjust_brightness", [np.array([0.7])]), as_image(expected)
    )
    gray = IMAGE[..., :1]
    assert np.array_equal(
        run_op(ops.ColorOp, "permute_channels", [np.array([[2, 0, 1]])], image=gray), gray
    )


def test_a_switch_runs_one_branch_and_a_blend_weighs_all() -> None:
    same = Program([], Rules(RULES))
    flipped = Program([ops.FlipOp("step", SPEC, np.array([[1, 0]]))], Rules(RULES))
    branches = (same, flipped)
    assert np.array_equal(run_op(SwitchOp, branches, [0]), IMAGE)
    assert np.array_equal(run_op(SwitchOp, branches, [1]), IMAGE[:, ::-1])
    mixed = run_op(BlendOp, branches, [[0.25, 0.75]])
    expected = np.float32(0.25) * IMAGE + np.float32(0.75) * IMAGE[:, ::-1]
    assert np.array_equal(mixed, expected.astype(np.uint8))


def test_numbers_are_converted_and_normalized_as_the_steps_do() -> None:
    levels = run_op(ops.ToDtypeOp, "float32", True)
    assert np.array_equal(levels, as_image(F.to_dtype(as_tensor(IMAGE), torch.float32, scale=True)))
    made = run_op(ops.NormalizeOp, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), image=levels)
    expected = F.normalize(as_tensor(levels), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    assert np.allclose(made, as_image(expected), atol=1e-6)


def test_a_function_of_torch_is_called_with_channels_first() -> None:
    shapes = []

    def halve(image: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(image.shape))
        return image // 2

    assert np.array_equal(run_op(ops.CallTorchOp, halve), IMAGE // 2)
    assert shapes == [(3, 6, 9)]
