"""What a pass of a loader costs: seconds, CPU time, peak memory."""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpupipe.bench.memory import PeakMemory

_MIB = 2**20
_TICKS = os.sysconf("SC_CLK_TCK")


def nothing() -> None:
    """What there is to wait for at the end of a pass on a CPU."""


def measure(
    build: Callable[[], Iterable[Any]],
    size: Callable[[Any], int],
    seconds: float,
    warm_seconds: float,
    finish: Callable[[], None] = nothing,
) -> dict[str, Any]:
    """Build, warm up, then whole passes for at least `seconds`. `size` counts the images of a
    batch; `finish` waits for the device.

    Seconds of wall time; memory in MiB; others_cores: how many of this process's cores other
    processes kept busy meanwhile (0 on a quiet machine).
    """
    from gpupipe.bench.memory import PeakMemory

    with PeakMemory() as memory:
        started = time.perf_counter()
        batches = build()
        first, warm_passes = _warm(batches, started, warm_seconds, finish)
        cpu, cores_cpu, started = cpu_seconds(), cores_cpu_seconds(), time.perf_counter()
        passes: list[tuple[int, float]] = []
        while time.perf_counter() - started < seconds:
            passes.append(_one_pass(batches, size, finish))
        wall, cpu, cores_cpu = (
            time.perf_counter() - started,
            cpu_seconds() - cpu,
            cores_cpu_seconds() - cores_cpu,
        )
    images = sum(n for n, _ in passes)
    return {
        "images_per_second": images / wall,
        "cpu_seconds_per_1000": 1000 * cpu / images,
        "first_batch_seconds": first,
        **peak(memory),
        "others_cores": max(0.0, cores_cpu - cpu) / wall,
        "images": images,
        "seconds": wall,
        "warm_up_passes": warm_passes,
        "passes": [n / s for n, s in passes],
    }


def peak(memory: "PeakMemory") -> dict[str, Any]:
    """What `memory` found, for a result."""
    memory.stop()
    return {"peak_memory_mib": memory.bytes / _MIB, "peak_memory_kind": memory.kind}


def _warm(
    batches: Iterable[Any], started: float, least: float, finish: Callable[[], None]
) -> tuple[float, int]:
    """At least one pass, for at least `least` seconds; the seconds from `started` to the first
    batch, and the passes.
    """
    first, passes = 0.0, 0
    while passes == 0 or time.perf_counter() - started < first + least:
        for _ in batches:
            if not first:
                finish()
                first = time.perf_counter() - started
        finish()
        passes += 1
    return first, passes


def _one_pass(
    batches: Iterable[Any], size: Callable[[Any], int], finish: Callable[[], None]
) -> tuple[int, float]:
    images, started = 0, time.perf_counter()
    for batch in batches:
        images += size(batch)
    finish()
    return images, time.perf_counter() - started


def cpu_seconds() -> float:
    """CPU time of this process and of its live and ended children."""
    own, ended = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    live = sum(_ticks(child.pid) for child in multiprocessing.active_children()) / _TICKS
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + live


def _ticks(pid: int | None) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cores_cpu_seconds() -> float:
    """CPU time that the cores of this process have spent on anything (user, nice, system,
    interrupts, and stolen by the host).
    """
    mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    return (
        sum(sum(map(int, fields[1:4] + fields[6:9])) for fields in lines if fields[0] in mine)
        / _TICKS
    )
