"""Copies tensors to a GPU without waiting for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Stream, Tensor, cuda, device


def on_device(where: device) -> AbstractContextManager[Any]:
    """Return a context in which `where` is the current device of this thread, if it is a GPU.

    The current device of a new thread is GPU 0. What the thread does there, such as page-locking
    memory, may make a CUDA context on GPU 0: hundreds of MiB in every rank of a machine.

    Args:
        where: A GPU, or the CPU, for which the context does nothing.
    """
    import torch

    return torch.cuda.device(where) if where.type == "cuda" else nullcontext()


@contextmanager
def on_stream(stream: cuda.Stream) -> Iterator[None]:
    """Queue the work inside the `with` block on a stream of a GPU.

    torch.cuda.stream() alone ends by making GPU 0 the current device of a new thread, which makes
    a CUDA context there.

    Args:
        stream: The stream.
    """
    import torch

    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


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
