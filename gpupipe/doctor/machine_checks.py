"""Checks cores, memory, open files and the cache folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpupipe.doctor.finding import Finding, judge
from gpupipe.runtime.devices import cores
from gpupipe.runtime.files import cache_dir

GIB = 2**30
_FEWEST_FILES = 4096
_ENOUGH_FILES = 65536


def check_cores() -> Iterator[Finding]:
    """Check how many cores the process may use."""
    every = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
    yield judge_processors(cores(), allowed, every)


def judge_processors(usable: int, allowed: int, all_of_them: int) -> Finding:
    """Judge the cores: `usable` by affinity and quota, `allowed` by affinity alone."""
    quota = f", quota of the control group {usable}" if usable < allowed else ""
    observation = f"{usable} usable (affinity {allowed}{quota}; the machine has {all_of_them})"
    advice = "give the process 2 or more: reading and decoding run beside training"
    return judge("cores", observation, (usable < 2, observation, "warning", advice))


def check_memory() -> Iterator[Finding]:
    """Check how much memory is available."""
    fields = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    size = {key.rstrip(":"): int(kibibytes) * 1024 for key, kibibytes, *_ in fields}
    limit = read_memory_limit(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup"))
    yield judge_memory(size["MemTotal"], size["MemAvailable"], limit)


def judge_memory(total: int, available: int, limit: int | None) -> Finding:
    """Judge the memory in bytes; `limit` is that of the control group, None for no limit."""
    observation = f"{total / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    if limit is not None and limit < total:
        observation += f"; the control group may use {limit / GIB:.1f} GiB"
        available = min(available, limit)
    advice = "use a smaller loader.batch_size and loader.prefetch, or free memory"
    return judge("memory", observation, (available < 2 * GIB, observation, "warning", advice))


def read_memory_limit(membership: str, root: Path) -> int | None:
    """Return the lowest memory limit of this process's control groups and their parents.

    Args:
        membership: The text of /proc/self/cgroup.
        root: The folder where control groups are mounted.

    Returns:
        Bytes; None for no limit.
    """
    limits = []
    for line in membership.splitlines():
        controllers, path = line.split(":", 2)[1:]
        if controllers not in ("", "memory"):
            continue
        top, file = (
            (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        )
        inner = Path(path.lstrip("/"))
        files = [top / part / file for part in (inner, *inner.parents)]
        texts = [file.read_text().strip() for file in files if file.is_file()]
        limits += [int(text) for text in texts if text.isdigit()]
    return min(limits, default=None)


def check_shared_memory() -> Iterator[Finding]:
    """Check the size of /dev/shm, where there is one."""
    if Path("/dev/shm").is_dir():
        disk = shutil.disk_usage("/dev/shm")
        yield judge_shared_memory(disk.total, disk.free)


def judge_shared_memory(size: int, free: int) -> Finding:
    """Judge the size and free space of /dev/shm in bytes."""
    observation = f"{size / GIB:.1f} GiB, {free / GIB:.1f} GiB free (/dev/shm)"
    advice = (
        "DataLoader workers pass batches through it: docker run --shm-size=8g, or "
        "remove what fills /dev/shm"
    )
    return judge("shared memory", observation, (free < GIB, observation, "warning", advice))


def check_open_files() -> Iterator[Finding]:
    """Check how many files the process may hold open."""
    import resource

    yield judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def judge_open_files(soft: int, hard: int) -> Finding:
    """Judge the soft and hard limits of RLIMIT_NOFILE; negative is no limit."""
    observation = (
        f"{soft if soft >= 0 else 'no limit'} (hard limit: {hard if hard >= 0 else 'none'})"
    )
    needs_root = (
        "raise the hard limit as root (/etc/security/limits.conf, or docker run --ulimit "
        f"nofile={_ENOUGH_FILES}), then ulimit -n"
    )
    ulimit = f"ulimit -n {_ENOUGH_FILES if hard < 0 else min(hard, _ENOUGH_FILES)}"
    advice = needs_root if 0 <= hard < _FEWEST_FILES else ulimit
    is_low = 0 <= soft < _FEWEST_FILES
    return judge("open files", observation, (is_low, observation, "warning", advice))


def check_cache_folder() -> Iterator[Finding]:
    """Try to write a file: permission bits ignore read-only file systems, and root ignores them."""
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as f:
            f.write(b"gpupipe")
        yield judge_cache_folder(folder, shutil.disk_usage(folder).free, "")
    except OSError as e:
        yield judge_cache_folder(folder, 0, str(e))


def judge_cache_folder(folder: Path, free: int, error: str) -> Finding:
    """Judge the cache folder: `free` bytes, and `error`, the message of a failed write."""
    observation, failure = (
        f"{folder}, {free / GIB:.1f} GiB free",
        f"{folder} cannot be written: {error}",
    )
    advice = "free some space, or set GPUPIPE_CACHE to a folder on a larger disk"
    return judge(
        "cache folder",
        observation,
        (error, failure, "problem", "set GPUPIPE_CACHE to a folder that can be"),
        (free < GIB, observation, "warning", advice),
    )
