"""What tells the tests that something would wait for a GPU: it must be able to."""

from collections.abc import Callable

import pytest
import torch

from helpers.fake_gpu import GPU, FakeGpu, Waits

WAITING: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "a blocking copy": lambda here, there: here.to(GPU),
    "a copy out of pageable memory": lambda here, there: here.to(GPU, non_blocking=True),
    "a copy into a tensor": lambda here, there: there.copy_(here),
    "a tensor that is made there": lambda here, there: torch.tensor([1.0], device=GPU),
    "a copy from the GPU": lambda here, there: there.cpu(),
    "one that does not block": lambda here, there: there.to("cpu", non_blocking=True),
    "a number": lambda here, there: there[0].item(),
    "a condition": lambda here, there: bool((there > 0).any()),
}


@pytest.mark.parametrize("what", WAITING)
def test_what_waits_is_refused(what: str) -> None:
    with FakeGpu(), pytest.raises(Waits):
        WAITING[what](torch.zeros(3), torch.zeros(3, device=GPU))


def test_what_does_not_wait_is_let_through() -> None:
    with FakeGpu():
        there = torch.zeros(3).pin_memory().to(GPU, non_blocking=True)
        assert there.mul(2).to(torch.float16).device == GPU


def test_tensors_of_two_devices_do_not_mix() -> None:
    with FakeGpu(), pytest.raises(RuntimeError, match="same device"):
        torch.zeros(3, device=GPU) + torch.zeros(3)
