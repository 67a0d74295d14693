"""Tensors on the CPU stay where they are. Copies to a GPU: tests/gpu."""

import torch

from gpupipe.runtime.memory import on_device, record_stream, to_device


def test_on_the_cpu_nothing_is_copied() -> None:
    tensor = torch.arange(3)
    with on_device(torch.device("cpu")):
        assert to_device(tensor, torch.device("cpu")) is tensor


def test_tensors_on_the_cpu_belong_to_no_stream() -> None:
    record_stream({"image": torch.zeros(2)}, None)  # type: ignore[arg-type]  # it is not used
