"""Queries NVIDIA's driver through NVML, which needs no CUDA and sees every GPU of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def session() -> Iterator[Any]:
    """Initialise NVML, and shut it down at the end of the `with` block.

    Yields:
        The module pynvml, or None if there is no driver or pynvml is not installed.
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


def query(nvml: Any, otherwise: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """Return `question(*arguments)`, or `otherwise` if NVML raises an error.

    A card, a driver or a container may refuse any query.

    Args:
        nvml: The module pynvml.
        otherwise: The value to return after an NVMLError.
        question: A function of pynvml.
        *arguments: Its arguments.
    """
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return otherwise


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver, or None if NVML does not answer."""
    with session() as nvml:
        return None if nvml is None else query(nvml, None, nvml.nvmlSystemGetDriverVersion)


def supported_cuda(nvml: Any) -> tuple[int, int] | None:
    """Return the CUDA version, (major, minor), that libcuda supports; None if there is none."""
    number = query(nvml, 0, nvml.nvmlSystemGetCudaDriverVersion)  # 13020 is CUDA 13.2
    return (number // 1000, number % 1000 // 10) if number else None


def cards() -> list[str]:
    """Return the name of each GPU that the driver sees, even if CUDA_VISIBLE_DEVICES hides it."""
    with session() as nvml:
        if nvml is None:
            return []
        return [card_name(nvml, i) for i in range(query(nvml, 0, nvml.nvmlDeviceGetCount))]


def card_name(nvml: Any, number: int) -> str:
    """Return the name of card `number` in NVML's order, which is not CUDA's."""
    handle = query(nvml, None, nvml.nvmlDeviceGetHandleByIndex, number)
    return (
        str(query(nvml, "a card without a name", nvml.nvmlDeviceGetName, handle))
        if handle
        else "a card that does not answer"
    )


def handle_of(nvml: Any, device_id: int) -> Any:
    """Return NVML's handle of a GPU.

    Args:
        nvml: The module pynvml.
        device_id: Number of the GPU for CUDA, which depends on CUDA_VISIBLE_DEVICES and
            CUDA_DEVICE_ORDER.

    Raises:
        NVMLError: NVML does not know the GPU.
    """
    import torch

    return handle_of_uuid(nvml, str(torch.cuda.get_device_properties(device_id).uuid))


def handle_of_uuid(nvml: Any, uuid: str) -> Any:
    """Return NVML's handle of a GPU or of a MIG instance.

    Args:
        nvml: The module pynvml.
        uuid: Its UUID, with or without the prefix "GPU-" or "MIG-".

    Raises:
        NVMLError: NVML knows no such UUID.
    """
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
    except nvml.NVMLError:  # CUDA's UUIDs do not say whether they belong to a MIG instance
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
