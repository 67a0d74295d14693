"""Copies tensors to a GPU asynchronously, counts memory, and frees unused memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.runtime.systems import find_c_function

if TYPE_CHECKING:
    from torch import Stream, Tensor, cuda, device

_MALLOC_TRIM = find_c_function("malloc_trim")
_POOLED = "DALI_MALLOC_POOL_THRESHOLD"
"""DALI's environment variable: the size from which DALI keeps a CPU buffer for reuse.

The default is 32 MB. Smaller buffers go back to the system, so each batch has new page faults. With
the default, a batch of 32 MB of raw numbers takes 8 times as long, and images take more memory.
"""


def on_device(where: device) -> AbstractContextManager[Any]:
    """Return a context in which the GPU `where` is the current device of this thread.

    Without this context, the current device of a new thread is GPU 0. Page-locking memory, for
    example, may then create a CUDA context on GPU 0, which takes hundreds of MiB in every rank of
    a machine.

    Args:
        where: A GPU, or the CPU, for which the context does nothing.
    """
    import torch

    return torch.cuda.device(where) if where.type == "cuda" else nullcontext()


@contextmanager
def on_stream(stream: cuda.Stream) -> Iterator[None]:
    """Queue the work inside the `with` block on a stream of a GPU.

    torch.cuda.stream() alone is not enough: at the end of its block, it makes GPU 0 the current
    device of a new thread, which creates a CUDA context there.

    Args:
        stream: The stream, of any GPU.
    """
    import torch

    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


def to_device(tensor: Tensor, where: device) -> Tensor:
    """Copy a CPU tensor to the device `where`, and return the copy.

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
    """Tell torch that `stream` uses a batch whose GPU tensors were made on another stream.

    Otherwise torch reuses the tensors' memory after the last reference to them is gone, while
    kernels on `stream` may still read it.

    Args:
        batch: Tensors by field; tensors on the CPU are ignored.
        stream: The stream on which the consumer uses the batch.
    """
    for tensor in batch.values():
        if tensor.device.type == "cuda":
            tensor.record_stream(stream)


def let_dali_pool_buffers() -> None:
    """Let DALI keep CPU buffers of 1 MB and more for the next batch.

    Call it before the process builds its first DALI pipeline. A user's own setting of
    DALI_MALLOC_POOL_THRESHOLD stays.
    """
    os.environ.setdefault(_POOLED, "1M")


def read_meminfo() -> dict[str, int]:
    """Return the sizes in /proc/meminfo, in bytes, by their names there, such as "MemFree".

    Returns {} on a system without this file.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {name.rstrip(":"): int(count) * 1024 for name, count, *unit in fields if unit}


def malloc_trim() -> None:
    """Return free heap memory to the system (malloc_trim).

    Without it, the memory of the process varies by a tenth from epoch to epoch.
    """
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def release_unused_memory(gpu: device) -> None:
    """Free the unused GPU memory and page-locked memory in DALI's pools.

    DALI never frees these pools itself. The pool of pageable CPU memory stays: the next loader of
    the process reuses it.

    Args:
        gpu: The GPU of the closed pipeline. The function first waits for all kernels that are
            queued there, because they still use memory of the pools.
    """
    import torch
    from nvidia.dali import backend

    with contextlib.suppress(RuntimeError):  # on a failed GPU: close() must not hide the cause
        torch.cuda.synchronize(gpu)
        backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]  # its stub lacks it
