"""Copies tensors to a GPU without waiting for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Stream, Tensor, device


def to_device(tensor: Tensor, where: device) -> Tensor:
    """Return a CPU tensor on the device `where`.

    The copy to a GPU runs on the current stream, from page-locked memory. A blocking copy, or one
    from pageable memory, would wait for all work that is queued on that stream.

    Args:
        tensor: A tensor on the CPU.
        where: The target device. For the CPU, the tensor itself is returned.
    """
    if where.type == "cpu":
        return tensor
    return tensor.pin_memory().to(where, non_blocking=True)


def record_stream(batch: Mapping[str, Tensor], stream: Stream) -> None:
    """Tell torch that `stream` uses the GPU tensors of a batch that another stream made.

    Otherwise torch reuses their memory as soon as the last reference to them is gone. Kernels that
    read them may still be queued on `stream` then.

    Args:
        batch: Tensors by field; tensors on the CPU are ignored.
        stream: The consumer's stream.
    """
    for tensor in batch.values():
        if tensor.device.type == "cuda":
            tensor.record_stream(stream)
