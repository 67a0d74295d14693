"""grayscale on a GPU: torchvision's pixels, by an operator that launches one kernel a batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from helpers.either_device import DEVICE
from helpers.reference import by_id, operators, reference

pytestmark = pytest.mark.either_device


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("before", [[], [{"grayscale": {}}]], ids=["of colours", "of gray"])
def test_pixels_are_within_a_level_of_torchvision(
    tmp_path: Path, channels: int, before: list[Any]
) -> None:
    rng = np.random.default_rng(7)
    (tmp_path / "one").mkdir()
    for n in range(16):
        Image.fromarray(rng.integers(0, 256, (40 + n, 50, 3), np.uint8)).save(
            tmp_path / "one" / f"{n}.png"
        )
    steps = [
        "decode",
        *before,
        {"grayscale": {"num_output_channels": channels}},
        {"resize": {"size": [40, 50], "interpolation": "nearest"}},
    ]
    config = {"data": {"source": "folder", "root": tmp_path}, "pipeline": steps}
    with gpupipe.load(config, batch_size=16, ids=True, engine="dali", device=DEVICE) as loader:
        assert ("coord_transform", DEVICE) in [(op, device) for op, device, _ in operators(loader)]
        for id, image in by_id(loader).items():
            expected = reference(loader, 0, id)
            assert image.shape == expected.shape
            assert int((image.int() - expected.int()).abs().max()) <= 1
