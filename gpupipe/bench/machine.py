"""The machine and the versions that a figure was measured with."""

from __future__ import annotations

import platform
import resource
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpupipe.devices import cores, gpu_count

_PACKAGES = ("gpupipe", "torch", "torchvision", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "numpy")


def machine() -> dict[str, Any]:
    """Plain JSON: processor, cores, memory, GPU, versions and the time."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": cores(),
        "memory_gib": _memory_gib(),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": _versions(),
    }


def _processor() -> str:
    return _first_value(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    text = _first_value(Path("/proc/meminfo"), "MemTotal")
    return round(int(text.split()[0]) / 2**20, 1) if text else None


def _first_value(path: Path, key: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def peak_memory() -> int:
    """The most bytes that this process held. Not ru_maxrss where that can be helped: it also counts the process that started this one."""
    text = _first_value(Path("/proc/self/status"), "VmHWM")
    return int(text.split()[0]) * 1024 if text else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _gpu() -> str | None:
    if gpu_count() == 0:
        return None
    import torch

    return torch.cuda.get_device_name(0)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
