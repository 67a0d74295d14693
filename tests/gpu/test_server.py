"""Batches of a server on their way to a GPU."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("zmq", reason="the tests of the server need pyzmq: pip install pyzmq")
pytest.importorskip("msgspec", reason="the tests of the server need msgspec: pip install msgspec")

import gpupipe
from gpupipe.protocol.shared_memory import Mapped, Slots, _pin
from helpers.either_device import DEVICE, TYPE
from helpers.served import serving


@pytest.fixture
def config(faces: Path) -> dict[str, Any]:
    steps = ["decode", {"resize": {"size": [10, 12]}}, "random_horizontal_flip"]
    loader = {
        "engine": "dataloader",
        "workers": 0,
        "device": "cpu",
        "batch_size": 3,
        "seed": 5,
        "ids": True,
        "threads": 1,
    }
    return {"data": {"source": "folder", "root": str(faces)}, "pipeline": steps, "loader": loader}


def test_a_slot_is_pinned_as_long_as_it_is_mapped() -> None:
    slots, mapped = Slots(1), Mapped(os.getpid(), gpu=0)
    taken = slots.take(1 << 20)
    assert taken is not None
    seen = mapped.tensor(taken[0], 1 << 20)
    assert seen.is_pinned()
    taken[1].fill_(7)
    assert int(seen.to("cuda", non_blocking=True).sum()) == 7 << 20
    del seen, mapped
    gc.collect()
    again = Mapped(os.getpid(), gpu=0).tensor(taken[0], 1 << 20)
    assert again.is_pinned(), "the same memory can be pinned again, so it was given back"
    slots.close()


def test_memory_that_cannot_be_pinned_leaves_no_error_behind() -> None:
    memory = np.zeros(1 << 20, np.uint8)
    _pin(memory, 0)
    _pin(memory, 0)  # CUDA refuses: it is pinned already
    assert float(torch.ones(3, device="cuda").sum()) == 3, (
        "the launch after it does not raise that error"
    )
    assert torch.from_numpy(memory).is_pinned()


ON_THE_LAST_GPU = """
import numpy as np, torch
from gpupipe.protocol.shared_memory import Buffers, _pin
last = torch.cuda.device_count() - 1
memory = np.zeros(1 << 20, np.uint8)
_pin(memory, last)
taken = Buffers(1, last).take(1 << 20)
assert torch.from_numpy(memory).is_pinned() and taken.is_pinned()
del memory
print([torch._C._cuda_hasPrimaryContext(n) for n in range(last + 1)])
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_pinning_starts_no_context_on_another_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_THE_LAST_GPU], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str([False] * (torch.cuda.device_count() - 1) + [True])


@pytest.mark.either_device
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_batches_arrive_on_the_gpu_as_they_are(config: dict[str, Any], transport: str) -> None:
    with gpupipe.load(config) as loader:
        expected = [b["image"] for _ in range(3) for b in loader]
    with (
        serving(config, hwm=2) as server,
        gpupipe.connect(server.address, device=DEVICE, transport=transport, hwm=2) as loader,
    ):
        found = [b["image"] for _ in range(3) for b in loader]
    assert all(image.device.type == TYPE for image in found)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
