"""Describes the machine that runs a measurement; measures how busy its CPU and GPU are.

`synchronise` waits until a loader's GPU is idle. `used_gpu_memory` reads how much of the GPU's
memory is in use.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.bench.memory import list_family
from gpupipe.protocol.peers import read_stat
from gpupipe.runtime.devices import gpu_count, handle_of, nvml_session
from gpupipe.runtime.installation import installed_version, own_version
from gpupipe.runtime.ranks import allowed_cores, cores
from gpupipe.runtime.systems import IS_POSIX

if TYPE_CHECKING:
    from gpupipe.loader import Loader

_SECONDS_BETWEEN_LOOKS = 0.1
_PACKAGES = ("torch", "torchvision", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "numpy")


def machine() -> dict[str, Any]:
    """Return processor, cores, memory, GPU, package versions and the time, as plain JSON."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": cores(),
        "memory_gib": _memory_gib(),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": _versions(),
    }


def _memory_gib() -> float | None:
    if not IS_POSIX:
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _processor() -> str:
    """Return its name, and family and model too if no number is in the name, as on many VMs."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    pairs = (line.partition(":") for line in lines)
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    name = facts.get("model name") or platform.processor() or platform.machine()
    if any(character.isdigit() for character in name) or "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def _gpu() -> str | None:
    if gpu_count() == 0:
        return None
    import torch

    return torch.cuda.get_device_name(0)


def _versions() -> dict[str, str]:
    versions = {"gpupipe": own_version()} | {name: installed_version(name) for name in _PACKAGES}
    return {name: version for name, version in versions.items() if version is not None}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants.

    Without /proc, descendants that still run do not count.
    """
    seconds = time.process_time() + sum(os.times()[2:4])
    if not Path("/proc/self").exists():
        return seconds
    ticks = sum(int(ticks) for pid in list_family(os.getpid()) for ticks in read_stat(pid)[11:15])
    return seconds + ticks / os.sysconf("SC_CLK_TCK")


class Load:
    """A context manager that measures how busy CPU cores and a GPU are.

    Args:
        device: The GPU to watch, "gpu:N"; or "cpu".

    Attributes:
        others: After the context, how many of this process's cores other processes kept busy on
            average; 0 on systems without /proc.
        cpu_seconds: After the context, the CPU seconds that this process and its descendants used
            in it.
        gpu: After the context, the mean share of time in which the GPU ran a kernel, 0 to 1. None
            on a CPU, or if NVML has no answer.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.others, self.cpu_seconds = 0.0, 0.0
        self.gpu: float | None = None
        self._gpu_shares: list[float] = []
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch_gpu, args=(device,), daemon=True)

    def __enter__(self) -> Load:
        self._watcher.start()
        self._cpu, self._all_cpu = cpu_seconds(), _all_cpu_seconds()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.cpu_seconds = cpu_seconds() - self._cpu
        others = _all_cpu_seconds() - self._all_cpu - self.cpu_seconds
        self.others = max(0.0, others) / (time.perf_counter() - self._started)
        self._done.set()
        self._watcher.join()
        self.gpu = statistics.fmean(self._gpu_shares) if self._gpu_shares else None

    def _watch_gpu(self, device: str) -> None:
        if device == "cpu":
            return
        with nvml_session() as library:
            if library is None:
                return
            try:
                handle = handle_of(library, int(device.partition(":")[2]))
                while not self._done.wait(_SECONDS_BETWEEN_LOOKS):
                    self._gpu_shares.append(library.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
            except library.NVMLError:
                return


def _all_cpu_seconds() -> float:
    """Return the seconds since boot that the cores of this process were busy; 0 without /proc.

    It sums user, nice, system, interrupts, and time stolen by the host.
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    mine = {f"cpu{n}" for n in allowed_cores()}
    rows = [fields for line in lines if (fields := line.split())[0] in mine]
    ticks = sum(sum(map(int, fields[1:4] + fields[6:9])) for fields in rows)
    return ticks / os.sysconf("SC_CLK_TCK")


def synchronise(loader: Loader) -> None:
    """Wait until the loader's GPU is idle; return at once if the loader delivers to the CPU."""
    device_id = gpu_of(loader)
    if device_id is not None:
        import torch

        torch.cuda.synchronize(device_id)


def gpu_of(loader: Loader) -> int | None:
    """Return the number of the loader's GPU, or None on a CPU.

    It may differ from torch's current device.
    """
    return None if loader.engine.device == "cpu" else int(loader.engine.device.partition(":")[2])


def used_gpu_memory(loader: Loader) -> int | None:
    """Return the bytes that all processes use on the loader's GPU; None on a CPU."""
    device_id = gpu_of(loader)
    if device_id is None:
        return None
    import torch

    free, total = torch.cuda.mem_get_info(device_id)
    return int(total - free)
