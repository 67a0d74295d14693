"""Batches of a server on their way to a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from served import serving

import gpupipe


@pytest.mark.gpu
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_batches_arrive_on_the_gpu_as_they_are(config: dict[str, Any], transport: str) -> None:
    with gpupipe.load(config) as loader:
        expected = [b["image"] for _ in range(3) for b in loader]
    with serving(config, hwm=2) as server, gpupipe.connect(server.address, device="gpu:0", transport=transport, hwm=2) as loader:
        found = [b["image"] for _ in range(3) for b in loader]
    assert all(image.device == torch.device("cuda", 0) for image in found)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
