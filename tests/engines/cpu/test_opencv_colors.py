"""The colours with OpenCV: torchvision's pixels, but for a level of a few."""

from itertools import product

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.pipeline.step import SampleIncompatibleError
from helpers.opencv_pictures import SIZES, apply, assert_close, picture

pytest.importorskip("cv2", reason="OpenCV is not installed")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_blur_is_torchvisions(channels: int) -> None:
    sigmas = [[0.1, 0.1], [0.5, 3.0], [2.0, 2.0]]
    for size, kernel_size, sigma in product(SIZES, [[23, 23], [5, 9], [1, 3]], sigmas):
        image = picture(size, channels)
        made, op = apply(image, "gaussian_blur", np.array([kernel_size]), np.array([sigma]))
        assert op == "cv2.sepFilter2D"
        expected = F.gaussian_blur(torch.from_numpy(image).permute(2, 0, 1), kernel_size, sigma)
        assert_close(made, expected, size, kernel_size, sigma)


def test_a_blur_of_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(SampleIncompatibleError, match="gaussian_blur needs at least 12x3 pixels"):
        apply(picture((11, 20), 3), "gaussian_blur", np.array([[5, 23]]), np.ones((1, 2)))


def test_a_hue_is_torchvisions() -> None:
    for size, factor in product(SIZES, [-0.5, -0.2, 0.0, 0.1, 0.37, 0.5]):
        image = picture(size, 3)
        image[:2] = np.array([[[0, 0, 0]], [[77, 77, 77]]])
        image[2:4] = np.array([[[255, 255, 255]], [[255, 0, 0]]])
        made, op = apply(image, "adjust_hue", np.array([factor]))
        assert op == "cv2.cvtColor"
        expected = F.adjust_hue(torch.from_numpy(image).permute(2, 0, 1), factor)
        assert_close(made, expected, size, factor)


def test_the_hue_of_gray_images_is_left_to_torchvision() -> None:
    image = picture((20, 20), 1)
    made, op = apply(image, "adjust_hue", np.array([0.2]))
    assert op == "torchvision.color"
    assert np.array_equal(made[0].numpy(), image[:, :, 0])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("adjust_brightness", "cv2.addWeighted"),
        ("adjust_contrast", "cv2.addWeighted"),
        ("adjust_saturation", "cv2.addWeighted"),
        ("adjust_sharpness", "cv2.filter2D"),
    ],
)
def test_a_blend_is_torchvisions(channels: int, name: str, kernel: str) -> None:
    factors = [0.0, 0.01, 0.37, 0.9, 1.0, 1.03, 1.7, 2.0]
    for size, factor in product([*SIZES, (1, 1), (2, 9), (3, 3)], factors):
        image = picture(size, channels)
        image[: size[0] // 4] = np.array([[200, 200, 200]])[:, :channels]
        image[size[0] // 4 : size[0] // 2] = np.array([[255, 0, 91]])[:, :channels]
        before = image.copy()
        made, op = apply(image, name, np.array([factor]))
        assert op == kernel
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        # A sharpened whole number may round to either side.
        share = 0.02 if name == "adjust_sharpness" else 2e-3
        assert_close(made, getattr(F, name)(tensor, factor), size, factor, share=share)
        assert np.array_equal(image, before), "the input is left alone"


def test_channels_are_permuted() -> None:
    image = picture((13, 20), 3)
    for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        made, op = apply(image, "permute_channels", np.array([order]))
        assert op == "cv2.split"
        assert np.array_equal(made.permute(1, 2, 0).numpy(), image[..., order])


def test_a_saturation_is_torchvisions_to_the_bit() -> None:
    """Of random factors, and of those for which many sums are near a whole number."""
    image = picture((64, 80), 3)
    image[:20, :, 0] = image[:20, :, 1]
    factors = [*np.random.default_rng(0).uniform(0, 2, 40), 0.3, 0.9, 1.0, 1.1, 1.7, 2.0]
    for factor in factors:
        made, _ = apply(image, "adjust_saturation", np.array([factor]))
        assert torch.equal(made, F.adjust_saturation(as_tensor(image), factor)), factor
