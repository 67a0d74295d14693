"""Which GPUs and cores there are, found without starting CUDA."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gpupipe.errors import DeviceError
from gpupipe.runtime import nvml
from gpupipe.runtime.ranks import cores_of_job, local_rank, ranks_on_machine


def cores() -> int:
    """The cores that this process may run on: its affinity, and the quota of its control group
    where that is less.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(allowed, _quota() or allowed))


def cores_of_rank() -> int:
    """The cores that this rank should take, at least 1: an equal share of the launcher's cores, and
    never more than cores().

    The launcher's cores are those of the job on this machine under Slurm, and else those of the
    parent process. So what the launcher shares out is divided, and what it gave to this rank alone
    is not divided a second time: a rank that is bound to 8 of 32 cores beside 3 others gets all 8,
    and 4 ranks that are bound to the same 8 of them get 2 each. Raises DeviceError.
    """
    ranks = ranks_on_machine()
    if ranks == 1:
        return cores()
    launcher = cores_of_job() or _cores_of_parent()
    return share(cores(), min(launcher, _quota() or launcher), ranks)


def share(own: int, launcher: int, ranks: int) -> int:
    """Of the launcher's cores, what one of `ranks` should take that may run on `own` of them."""
    return max(1, min(own, launcher // ranks))


def _cores_of_parent() -> int:
    """The cores of the process that started this one; this one's where that cannot be asked, as
    beyond a container's border.
    """
    parent = os.getppid()
    try:
        return len(os.sched_getaffinity(parent or os.getpid()))
    except (AttributeError, OSError):
        return cores()


def _quota() -> int | None:
    """Whole cores of the control group's CPU quota (version 2, else 1), or None where there is
    none.
    """
    quota, period = (
        _words("cpu.max")
        or (*_words("cpu/cpu.cfs_quota_us"), *_words("cpu/cpu.cfs_period_us"))
        or ("max", "1")
    )
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

    device: "auto", "cpu", "gpu" or "gpu:N". Without a number it is the one of the local rank, else
    torch's current device. Warns where "auto" is the CPU although there is a GPU. Raises
    DeviceError where a GPU is asked for and is not there, or CUDA was in use before this process
    was forked.
    """
    if device == "cpu":
        return None
    if device == "auto" and gpu_count() == 0:
        _warn_of_unused_gpus()
        return None
    if _forked_behind_cuda():
        raise DeviceError(
            "CUDA was in use before this process was forked, and cannot be used in it: "
            "start it with spawn or forkserver, or set loader.device=cpu"
        )
    number = int(device.partition(":")[2] or _own_gpu())
    if number >= gpu_count():
        found = (
            f"there are {gpu_count()}"
            if gpu_count()
            else "PyTorch sees none: 'gpupipe doctor' says why"
        )
        raise DeviceError(
            f"loader.device={device} asks for a GPU, and {found}. Set loader.device=cpu (or "
            "auto) to run on the CPU"
        )
    return number


@cache
def _warn_of_unused_gpus() -> None:
    """Once a process."""
    import torch

    why = why_unused(nvml.cards(), torch.version.cuda, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if why:
        warnings.warn(
            f"loader.device=auto runs on the CPU: {why}. loader.device=cpu says nothing of it",
            stacklevel=2,
        )


def why_unused(cards: Sequence[str], torch_cuda: str | None, setting: str | None) -> str:
    """Why torch sees no GPU where the driver sees `cards`; empty where there is none, or the user
    hides them.

    torch_cuda: the CUDA that torch is built for. setting: CUDA_VISIBLE_DEVICES.
    """
    if not cards or (setting is not None and setting.strip() in ("", "-1")):
        return ""
    there = f"the driver sees {'; '.join(cards)}, but "
    if torch_cuda is None:
        return f"{there}torch is built without CUDA (see pytorch.org/get-started)"
    if setting is not None:
        return f"{there}CUDA_VISIBLE_DEVICES={setting!r} leaves torch none"
    return f"{there}torch sees none: 'gpupipe doctor' says why"


def _own_gpu() -> int:
    """The GPU of this process where none is named."""
    import torch

    local = local_rank()
    if local is not None and gpu_count():
        return local % gpu_count()
    # torch's
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return torch.cuda.current_device()


def _forked_behind_cuda() -> bool:
    import torch

    return bool(getattr(torch.cuda, "_is_in_bad_fork", lambda: False)())
