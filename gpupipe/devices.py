"""Which GPUs and cores there are, found without starting CUDA."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from gpupipe.errors import DeviceError
from gpupipe.ranks import local_rank


def cores() -> int:
    """The cores that this process may run on: its affinity, and the quota of its control group where that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota() or allowed))


def _quota() -> int | None:
    """Whole cores of the control group's CPU quota (version 2, else 1), or None where there is none."""
    quota, period = _words("cpu.max") or (*_words("cpu/cpu.cfs_quota_us"), *_words("cpu/cpu.cfs_period_us")) or ("max", "1")
    return None if quota in ("max", "-1") else max(1, int(quota) // int(period))


def _words(name: str) -> tuple[str, ...]:
    try:
        return tuple(Path("/sys/fs/cgroup", name).read_text(encoding="ascii").split())
    except OSError:
        return ()


@cache
def gpu_count() -> int:
    """GPUs that CUDA would show to this process."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def resolve(device: str) -> int | None:
    """The number of the GPU to use, or None for the CPU.

    device: "auto", "cpu", "gpu" or "gpu:N". Without a number it is the one of LOCAL_RANK, else torch's current device.
    Raises DeviceError where a GPU is asked for and is not there, or CUDA was in use before this process was forked.
    """
    if device == "cpu" or (device == "auto" and gpu_count() == 0):
        return None
    if _forked_behind_cuda():
        raise DeviceError(
            "CUDA was in use before this process was forked, and cannot be used in it: start it with spawn or forkserver, or set loader.device=cpu"
        )
    number = int(device.partition(":")[2] or _own_gpu())
    if number >= gpu_count():
        found = f"there are {gpu_count()}" if gpu_count() else "PyTorch sees none: 'gpupipe doctor' says why"
        raise DeviceError(f"loader.device={device} asks for a GPU, and {found}. Set loader.device=cpu (or auto) to run on the CPU")
    return number


def _own_gpu() -> int:
    """The GPU of this process where none is named."""
    import torch

    local = local_rank()
    if local is not None and gpu_count():
        return local % gpu_count()
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]  # torch's


def _forked_behind_cuda() -> bool:
    import torch

    return bool(getattr(torch.cuda, "_is_in_bad_fork", lambda: False)())
