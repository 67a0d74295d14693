"""Finds the GPUs and CPU cores of this process without initialising CUDA."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gpupipe.errors import DeviceError
from gpupipe.runtime import nvml
from gpupipe.runtime.ranks import cores_of_job, local_rank, ranks_on_machine
from gpupipe.runtime.registry import Backend


def cores() -> int:
    """Return the number of cores that this process may run on, at least 1.

    That is the size of its CPU affinity, or the CPU quota of its control group if that is less.
    """
    allowed = len(allowed_cores())
    return max(1, min(allowed, _quota() or allowed))


def allowed_cores() -> list[int]:
    """Return the numbers of the cores in the CPU affinity of this process, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_of_rank() -> int:
    """Return the number of cores that this rank should use, at least 1.

    That is an equal share of the launcher's cores, and never more than `cores()`. Under Slurm the
    launcher's cores are those of the job on this machine, otherwise those of the parent process.
    Cores that the launcher gave to this rank alone are thus not divided a second time. A rank that
    is bound to 8 of 32 cores, beside 3 other ranks, gets all 8. Of 4 ranks that are bound to the
    same 8 cores, each gets 2.

    Raises:
        DeviceError: An environment variable of the launcher is malformed.
    """
    ranks = ranks_on_machine()
    if ranks == 1:
        return cores()
    launcher = cores_of_job() or _cores_of_parent()
    return share(cores(), min(launcher, _quota() or launcher), ranks)


def share(own: int, launcher: int, ranks: int) -> int:
    """Return the cores for one of `ranks` ranks on a machine, at least 1.

    Args:
        own: Cores that this rank may run on.
        launcher: Cores that the launcher may run on.
        ranks: Number of ranks that share the launcher's cores.
    """
    return max(1, min(own, launcher // ranks))


def _cores_of_parent() -> int:
    """Count the parent's cores, or this process's if the parent is outside the container."""
    parent = os.getppid()
    try:
        return len(os.sched_getaffinity(parent or os.getpid()))
    except (AttributeError, OSError):
        return cores()


def _quota() -> int | None:
    """Return the control group's CPU quota (version 2, else 1) in whole cores; None without one."""
    quota, period = (
        _read_cgroup("cpu.max")
        or (*_read_cgroup("cpu/cpu.cfs_quota_us"), *_read_cgroup("cpu/cpu.cfs_period_us"))
        or ("max", "1")
    )
    return None if quota in ("max", "-1") else max(1, int(quota) // int(period))


def _read_cgroup(name: str) -> tuple[str, ...]:
    try:
        return tuple(Path("/sys/fs/cgroup", name).read_text(encoding="ascii").split())
    except OSError:
        return ()


@cache
def gpu_count() -> int:
    """Return the number of GPUs that torch can use in this process.

    Asks NVML where possible, and not torch.cuda.is_available(): that initialises the driver, after
    which forked children cannot use CUDA.
    """
    import torch

    count = torch.cuda.device_count()
    return count if count and _driver_runs_torch(torch.version.cuda) else 0


def _driver_runs_torch(torch_cuda: str | None) -> bool:
    """Return whether the driver runs programs for torch's CUDA version.

    True if torch has another back end, or if NVML is missing: torch then asks the driver itself.
    """
    driver = nvml.find_driver()
    if driver is None or torch_cuda is None:
        return True
    return driver.cuda is not None and driver.cuda[0] >= int(torch_cuda.partition(".")[0])


def backend_of(device: str) -> Backend:
    """Return "gpu" if a value of `loader.device` means a GPU, even one that does not exist.

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
    if _forked_after_cuda():
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

    driver, setting = nvml.find_driver(), os.environ.get("CUDA_VISIBLE_DEVICES")
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
    """Return the GPU of the local rank, else torch's current device."""
    import torch

    local = local_rank()
    if local is not None and gpu_count():
        return local % gpu_count()
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return torch.cuda.current_device()


def _forked_after_cuda() -> bool:
    import torch

    return bool(getattr(torch.cuda, "_is_in_bad_fork", lambda: False)())
