"""engine: cpu delivers to a GPU: the pixels that it makes on the CPU, from page-locked memory."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe.runtime.batch_memory import BatchMemory, new_pinned_block
from helpers.either_device import DEVICE, TYPE
from helpers.loaders import load

STEPS: list[Any] = [
    "decode",
    {"resize": {"size": [96, 96]}},
    "random_horizontal_flip",
    {"to_dtype": {"dtype": "float32", "scale": True}},
]


def test_blocks_are_page_locked_and_used_again() -> None:
    memory = BatchMemory(1, new_pinned_block)
    first = memory.allocate((4, 5), torch.float32)
    assert first.is_pinned()
    address = first.data_ptr()
    del first
    second = memory.allocate((4, 5), torch.float32)
    assert second.is_pinned()
    assert second.data_ptr() == address


@pytest.mark.either_device
def test_batches_that_are_kept_are_those_of_the_cpu(faces: Path) -> None:
    for layout in ("contiguous", "channels_last"):
        options = {"engine": "cpu", "batch_size": 7, "memory_format": layout}
        with load(faces, STEPS, **options) as loader:
            expected = [batch["image"].clone() for _ in range(2) for batch in loader]
        with load(faces, STEPS, device=DEVICE, **options) as loader:
            batches = [batch for _ in range(2) for batch in loader]
        for batch, image in zip(batches, expected, strict=True):
            assert batch["image"].device.type == batch["label"].device.type == TYPE
            assert batch["image"].stride() == image.stride()
            assert torch.equal(batch["image"].cpu(), image)
