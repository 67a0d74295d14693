"""Queries NVIDIA's driver through NVML, which needs no CUDA and sees every GPU of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver, as NVML describes it.

    Attributes:
        version: The driver's version, or "of unknown version".
        cuda: The CUDA version that libcuda supports, (major, minor); None if unknown.
        cards: Name and memory of each card, in NVML's order, which is not CUDA's. It includes
            cards that CUDA_VISIBLE_DEVICES hides.
    """

    version: str
    cuda: tuple[int, int] | None = None
    cards: tuple[str, ...] = ()


def find_driver() -> Driver | None:
    """Return the driver; None if NVML is missing or does not answer."""
    with session() as nvml:
        if nvml is None:
            return None
        version = query(nvml, "of unknown version", nvml.nvmlSystemGetDriverVersion)
        number = query(nvml, 0, nvml.nvmlSystemGetCudaDriverVersion)  # 13020 is CUDA 13.2
        cuda = (number // 1000, number % 1000 // 10) if number else None
        cards = range(query(nvml, 0, nvml.nvmlDeviceGetCount))
        return Driver(version, cuda, tuple(_describe_card(nvml, card) for card in cards))


def _describe_card(nvml: Any, number: int) -> str:
    handle = query(nvml, None, nvml.nvmlDeviceGetHandleByIndex, number)
    if not handle:
        return "a card that does not answer"
    name = query(nvml, "a card without a name", nvml.nvmlDeviceGetName, handle)
    memory = query(nvml, None, nvml.nvmlDeviceGetMemoryInfo, handle)
    return f"{name}, {memory.total / 2**30:.0f} GiB" if memory else str(name)


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
        uuid: The UUID of the GPU or instance, with or without the prefix "GPU-" or "MIG-".

    Raises:
        NVMLError: NVML knows no such UUID.
    """
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
    except nvml.NVMLError:  # CUDA's UUIDs do not say whether they belong to a MIG instance
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
