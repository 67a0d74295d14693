"""Tensors on their way to a GPU. Nothing here waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Stream, Tensor, device


def to_device(tensor: Tensor, where: device) -> Tensor:
    """A tensor of the CPU on the device `where`.

    To a GPU it is copied on the current stream, out of page-locked memory. A copy that blocks, or
    that comes from pageable memory, would wait for all work that is queued on that stream.
    """
    if where.type == "cpu":
        return tensor
    return tensor.pin_memory().to(where, non_blocking=True)


def record_stream(batch: Mapping[str, Tensor], stream: Stream) -> None:
    """Tell torch that `stream` uses the GPU tensors of a batch, which were made on another stream.

    Otherwise torch gives their memory to the next copy as soon as the last reference to them is
    gone, though kernels that read them may still be queued on `stream`.
    """
    for tensor in batch.values():
        if tensor.device.type == "cuda":
            tensor.record_stream(stream)
