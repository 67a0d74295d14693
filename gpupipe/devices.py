"""Which GPUs and cores there are, found without starting CUDA."""

from __future__ import annotations

import os
from functools import cache

from gpupipe.errors import DeviceError


def cores() -> int:
    """The cores that this process may run on: its affinity, and the quota of its control group where that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota() or allowed))


def _quota() -> int | None:
    """Whole cores of the control group's CPU quota, or None where there is none."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as f:
            quota, period = f.read().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


@cache
def gpu_count() -> int:
    """GPUs that CUDA would show to this process."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def resolve(device: str) -> tuple[int | None, bool]:
    """The number of the GPU to use (None: the CPU), and whether its decoder may be asked for a part of an image.

    device: "auto", "cpu", "gpu" or "gpu:N". Raises DeviceError where a GPU is asked for and is not there.
    """
    if device == "cpu" or (device == "auto" and gpu_count() == 0):
        return None, True
    number = int(device.partition(":")[2] or 0)
    if number >= gpu_count():
        found = f"there are {gpu_count()}" if gpu_count() else "PyTorch sees none: 'gpupipe doctor' says why"
        raise DeviceError(f"loader.device={device} asks for a GPU, and {found}. Set loader.device=cpu (or auto) to run on the CPU")
    from gpupipe.probe import region_decode_survives

    return number, region_decode_survives(number)
