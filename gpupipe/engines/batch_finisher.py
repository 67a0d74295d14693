"""Finishes batches that were made elsewhere: the last steps, and the copy to the device."""

from __future__ import annotations

import torch

from gpupipe.engines.base import Batch
from gpupipe.engines.pipeline_tail import PipelineTail


class BatchFinisher:
    """Finishes received batches: copies them to the device, and runs the steps left to this side.

    Args:
        tail: The steps that are left to this side.
        gpu: Number of the GPU; None for the CPU.

    Attributes:
        device: The device of finished batches, "cpu" or "gpu:N".
        torch_device: The same for torch.
    """

    def __init__(self, tail: PipelineTail, gpu: int | None) -> None:
        self._tail = tail
        self.device = "cpu" if gpu is None else f"gpu:{gpu}"
        self.torch_device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        self._stream: torch.cuda.Stream | None = None
        if gpu is not None:
            self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    def __call__(self, tensors: dict[str, torch.Tensor], epoch: int) -> Batch:
        if self._stream is None:
            return self._run_steps(tensors, epoch)
        with torch.cuda.stream(self._stream):
            batch = self._run_steps(copy_to_gpu(tensors, self.torch_device), epoch)
        # The receive buffer can be used again only after the copies. The training thread does not
        # wait here.
        self._stream.synchronize()
        return batch

    def _run_steps(self, tensors: dict[str, torch.Tensor], epoch: int) -> Batch:
        for entry in self._tail.at_epoch(epoch):
            tensors[entry.field] = entry.step.torch(tensors[entry.field], {})
        if self._tail.dtype is not None:
            for name in self._tail.pipeline.main_outputs:
                tensors[name] = tensors[name].to(getattr(torch, self._tail.dtype))
        return tensors


def copy_to_gpu(tensors: dict[str, torch.Tensor], gpu: torch.device) -> Batch:
    """Copy a batch to a GPU; its ids stay on the CPU.

    The copies are asynchronous, because the receive buffer is page-locked. After they have ended,
    no tensor of the result refers to that buffer.

    Args:
        tensors: The batch, in the receive buffer.
        gpu: The GPU.
    """
    on_gpu = {
        name: tensor.to(gpu, non_blocking=True) for name, tensor in tensors.items() if name != "id"
    }
    return on_gpu | {"id": tensors["id"].clone()}
