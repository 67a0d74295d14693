"""Warps on the CPU engine: torchvision's pixels, with the extension and with OpenCV alone."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.opencv_kernels import create_rules
from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.engines.cpu.program import Rules
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.geometry import affine_inverse
from gpupipe.pipeline.step import NoLoweringError, Spec
from helpers.kernel_arguments import picture
from helpers.reference import differences

MACHINES = {"machine": find_rules, "OpenCV": lambda: Rules(create_rules())}
"""The rules of this machine, and those of OpenCV alone."""
ANGLE, SIZE = 17.3, (61, 80)


@pytest.fixture(params=MACHINES)
def rules(request: pytest.FixtureRequest) -> Rules:
    return MACHINES[request.param]()


def rotate(rules: Rules, image: Any, mode: str, fill: Any) -> torch.Tensor:
    """Rotate an array (H, W, C) with the primitive `warp`."""
    height, width, channels = image.shape
    spec = Spec.of_image(channels, dtype=str(image.dtype))
    tracer = Tracer([(height, width)], rules, spec)
    center, zero = np.array([[width / 2, height / 2]]), np.zeros(1)
    linear = affine_inverse(np.array([-ANGLE]), zero + 1, zero, zero)
    tracer.warp(linear, center, center, mode, fill)
    return as_tensor(tracer.program().run(image, 0)).clone()


def images(channels: int) -> Any:
    pixels = np.dstack([picture(*SIZE, seed=n) for n in range(2)])
    return np.ascontiguousarray(pixels[:, :, :channels])


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_a_rotation_is_that_of_torchvision(rules: Rules, mode: str, dtype: str) -> None:
    """Within a level for any number of channels; `fill: None` weighs the border once, as there."""
    fills: list[Any] = [None, (0.0,), (200.0,)]
    for channels, fill in product([1, 3, 4], fills):
        image = images(channels).astype(dtype)
        found = rotate(rules, image, mode, fill)
        own = torch.from_numpy(image).permute(2, 0, 1).float()
        outside = None if fill is None else list(fill)
        expected = F.rotate(own, ANGLE, InterpolationMode(mode), fill=outside)
        expected = expected.round() if dtype == "uint8" else expected
        apart = (found.float() - expected).abs()
        assert apart.max() <= (1 if dtype == "uint8" else 0.05), (channels, fill)
        assert (apart > 0.05).float().mean() < 0.02, (channels, fill)


def test_two_channels_run_in_torch() -> None:
    """OpenCV rounds their coordinates to 32nds of a pixel."""
    for pixels in (images(2), images(2).astype(np.float32)):
        with pytest.raises(NoLoweringError):
            rotate(Rules(create_rules()), pixels, "bilinear", None)


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_a_policy_is_that_of_torch(faces: Path, mode: str) -> None:
    """All the way into the batch: `fill` of a policy is None by default."""
    policy = {"trivial_augment_wide": {"interpolation": "bilinear"}}
    found = differences(faces, policy, decode={"mode": mode}, engine="cpu", batch_size=20)
    assert max(difference.most for difference in found) <= 1
    assert np.mean([difference.mean for difference in found]) < 0.01
