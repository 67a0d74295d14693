"""What NVIDIA's driver says about GPUs, through NVML: it needs no CUDA, and counts every GPU of the
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def session() -> Iterator[Any]:
    """The module pynvml, initialised; None where there is no driver, or no pynvml to ask it
    with.
    """
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def ask(nvml: Any, otherwise: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer to a question, or `otherwise`: a card, driver or container may refuse any."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return otherwise


def driver_version() -> str | None:
    """The version of NVIDIA's driver; None where nothing answers."""
    with session() as nvml:
        return None if nvml is None else ask(nvml, None, nvml.nvmlSystemGetDriverVersion)


def cards() -> list[str]:
    """The name of each GPU that the driver sees, also of those that CUDA_VISIBLE_DEVICES hides."""
    with session() as nvml:
        if nvml is None:
            return []
        return [card_name(nvml, i) for i in range(ask(nvml, 0, nvml.nvmlDeviceGetCount))]


def card_name(nvml: Any, number: int) -> str:
    """The name of card `number` as NVML counts them, which is not how CUDA does."""
    handle = ask(nvml, None, nvml.nvmlDeviceGetHandleByIndex, number)
    return (
        str(ask(nvml, "a card without a name", nvml.nvmlDeviceGetName, handle))
        if handle
        else "a card that does not answer"
    )


def handle_of(nvml: Any, device_id: int) -> Any:
    """NVML's handle of GPU `device_id` as CUDA counts them, so after CUDA_VISIBLE_DEVICES and
    CUDA_DEVICE_ORDER.

    Raises NVMLError.
    """
    import torch

    return handle_of_uuid(nvml, str(torch.cuda.get_device_properties(device_id).uuid))


def handle_of_uuid(nvml: Any, uuid: str) -> Any:
    """The handle of a GPU, or of the part of one (MIG) whose UUID this is. Raises NVMLError."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
    except nvml.NVMLError:  # CUDA gives the parts of a GPU UUIDs without saying that they are parts
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
