"""Finds the GPUs of this process without initialising CUDA, and queries NVIDIA's driver by NVML.

NVML needs no CUDA, and sees every GPU of the machine.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpupipe.errors import DeviceError
from gpupipe.runtime.ranks import local_rank
from gpupipe.runtime.registry import Backend


@cache
def gpu_count() -> int:
    """Return the number of GPUs that torch can use in this process.

    Asks NVML where possible. Does not call torch.cuda.is_available(), which would initialise the
    driver: after that, forked children could not use CUDA.
    """
    import torch

    count, torch_cuda = torch.cuda.device_count(), torch.version.cuda
    driver = find_driver() if count else None
    if driver is None or torch_cuda is None:  # torch asks the driver itself, or has no CUDA
        return count
    runs_torch = driver.cuda is not None and driver.cuda[0] >= int(torch_cuda.partition(".")[0])
    return count if runs_torch else 0


def backend_of(device: str) -> Backend:
    """Return "gpu" if a value of `loader.device` means a GPU (even a missing GPU), else "cpu".

    Args:
        device: "auto", "cpu", "gpu" or "gpu:N". "auto" means a GPU if torch can use one.
    """
    return "gpu" if device.startswith("gpu") or (device == "auto" and gpu_count()) else "cpu"


def resolve(device: str) -> int | None:
    """Return the number of the GPU to use, or None for the CPU.

    Warns once in a process if "auto" means the CPU although the driver sees a GPU.

    Args:
        device: "auto", "cpu", "gpu" or "gpu:N". Without a number, the GPU is that of the local
            rank, else torch's current device.

    Raises:
        DeviceError: The requested GPU does not exist, or this process was forked after its parent
            initialised CUDA.
    """
    if device == "cpu":
        return None
    if device == "auto" and gpu_count() == 0:
        _warn_of_unused_gpus()
        return None
    import torch

    if getattr(torch.cuda, "_is_in_bad_fork", lambda: False)():
        raise DeviceError(
            "CUDA was in use before this process was forked, and cannot be used in it: "
            "start it with spawn or forkserver, or set loader.device=cpu"
        )
    number = int(device.partition(":")[2] or _default_gpu())
    if number >= gpu_count():
        none = "PyTorch sees none: 'gpupipe doctor' says why"
        available = f"there are {gpu_count()}" if gpu_count() else none
        raise DeviceError(
            f"loader.device={device} asks for a GPU, and {available}. Set loader.device=cpu (or "
            "auto) to run on the CPU"
        )
    return number


@cache
def _warn_of_unused_gpus() -> None:
    """Warn, once in a process, if the driver sees GPUs that torch cannot use."""
    import torch

    driver, setting = find_driver(), os.environ.get("CUDA_VISIBLE_DEVICES")
    reason = why_unused(driver.cards if driver else (), torch.version.cuda, setting)
    if reason:
        warnings.warn(
            f"loader.device=auto runs on the CPU: {reason}. loader.device=cpu says nothing of it",
            stacklevel=2,
        )


def why_unused(cards: Sequence[str], torch_cuda: str | None, setting: str | None) -> str:
    """Return why torch sees no GPU although the driver does.

    Args:
        cards: The GPUs that the driver sees.
        torch_cuda: CUDA version that torch is built for; None without CUDA.
        setting: CUDA_VISIBLE_DEVICES; None if it is not set.

    Returns:
        The reason, or "" if there is no GPU or the user hides all of them.
    """
    if not cards or (setting is not None and setting.strip() in ("", "-1")):
        return ""
    prefix = f"the driver sees {'; '.join(cards)}, but "
    if torch_cuda is None:
        return f"{prefix}torch is built without CUDA (see pytorch.org/get-started)"
    if setting is not None:
        return f"{prefix}CUDA_VISIBLE_DEVICES={setting!r} leaves torch none"
    return f"{prefix}torch sees none: 'gpupipe doctor' says why"


def _default_gpu() -> int:
    """Return the number of the local rank's GPU; without a rank, that of torch's current device."""
    import torch

    local = local_rank()
    if local is not None and gpu_count():
        return local % gpu_count()
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return torch.cuda.current_device()


@contextmanager
def nvml_session() -> Iterator[Any]:
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


def query_nvml(nvml: Any, otherwise: Any, question: Callable[..., Any], *arguments: Any) -> Any:
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
        cards: Name and memory of each card, in NVML's order, which is not CUDA's. Cards that
            CUDA_VISIBLE_DEVICES hides are included.
    """

    version: str
    cuda: tuple[int, int] | None = None
    cards: tuple[str, ...] = ()


def find_driver() -> Driver | None:
    """Return what NVML says about NVIDIA's driver; None if NVML is missing or does not answer."""
    with nvml_session() as nvml:
        if nvml is None:
            return None
        version = query_nvml(nvml, "of unknown version", nvml.nvmlSystemGetDriverVersion)
        number = query_nvml(nvml, 0, nvml.nvmlSystemGetCudaDriverVersion)  # 13020 is CUDA 13.2
        cuda = (number // 1000, number % 1000 // 10) if number else None
        cards = range(query_nvml(nvml, 0, nvml.nvmlDeviceGetCount))
        return Driver(version, cuda, tuple(_describe_card(nvml, card) for card in cards))


def _describe_card(nvml: Any, number: int) -> str:
    handle = query_nvml(nvml, None, nvml.nvmlDeviceGetHandleByIndex, number)
    if not handle:
        return "a card that does not answer"
    name = query_nvml(nvml, "a card without a name", nvml.nvmlDeviceGetName, handle)
    memory = query_nvml(nvml, None, nvml.nvmlDeviceGetMemoryInfo, handle)
    return f"{name}, {memory.total / 2**30:.0f} GiB" if memory else str(name)


def handle_of(nvml: Any, device_id: int) -> Any:
    """Return NVML's handle of a GPU.

    Args:
        nvml: The module pynvml.
        device_id: CUDA's number of the GPU. The numbers depend on CUDA_VISIBLE_DEVICES and
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
