"""Judges cores, memory, open files and the cache folder.

Pure functions that do not query the machine. Each returns a Finding, with advice if it is needed.
"""

from __future__ import annotations

from pathlib import Path

from gpupipe.doctor.finding import Finding

GIB = 2**30
_FEWEST_FILES = 4096
_ENOUGH_FILES = 65536


def judge_processors(usable: int, allowed: int, all_of_them: int) -> Finding:
    """Judge the cores: `usable` by affinity and quota, `allowed` by affinity alone."""
    quota = f", quota of the control group {usable}" if usable < allowed else ""
    observation = f"{usable} usable (affinity {allowed}{quota}; the machine has {all_of_them})"
    if usable < 2:
        return Finding(
            "cores",
            observation,
            "warning",
            "give the process 2 or more: reading and decoding run beside training",
        )
    return Finding("cores", observation, "ok")


def judge_memory(total: int, available: int, limit: int | None) -> Finding:
    """Judge the memory in bytes; `limit` is that of the control group, None for no limit."""
    observation = f"{total / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    if limit is not None and limit < total:
        observation, available = (
            f"{observation}; the control group may use {limit / GIB:.1f} GiB",
            min(available, limit),
        )
    if available < 2 * GIB:
        return Finding(
            "memory",
            observation,
            "warning",
            "use a smaller loader.batch_size and loader.prefetch, or free memory",
        )
    return Finding("memory", observation, "ok")


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
        folder, file = (
            (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        )
        inner = Path(path.lstrip("/"))
        texts = [
            (folder / part / file).read_text().strip()
            for part in (inner, *inner.parents)
            if (folder / part / file).is_file()
        ]
        limits += [int(text) for text in texts if text.isdigit()]
    return min(limits, default=None)


def judge_shared_memory(size: int, free: int) -> Finding:
    """Judge the size and free space of /dev/shm in bytes."""
    observation = f"{size / GIB:.1f} GiB, {free / GIB:.1f} GiB free (/dev/shm)"
    if free < GIB:
        return Finding(
            "shared memory",
            observation,
            "warning",
            "DataLoader workers pass batches through it: docker run --shm-size=8g, or "
            "remove what fills /dev/shm",
        )
    return Finding("shared memory", observation, "ok")


def judge_open_files(soft: int, hard: int) -> Finding:
    """Judge the soft and hard limits of RLIMIT_NOFILE; negative is no limit."""
    observation = (
        f"{soft if soft >= 0 else 'no limit'} (hard limit: {hard if hard >= 0 else 'none'})"
    )
    if not 0 <= soft < _FEWEST_FILES:
        return Finding("open files", observation, "ok")
    if 0 <= hard < _FEWEST_FILES:
        advice = (
            "raise the hard limit as root (/etc/security/limits.conf, or docker run --ulimit "
            f"nofile={_ENOUGH_FILES}), then ulimit -n"
        )
        return Finding("open files", observation, "warning", advice)
    return Finding(
        "open files",
        observation,
        "warning",
        f"ulimit -n {_ENOUGH_FILES if hard < 0 else min(hard, _ENOUGH_FILES)}",
    )


def judge_cache_folder(folder: Path, free: int, error: str) -> Finding:
    """Judge the cache folder: `free` bytes, and `error`, the message of a failed write."""
    if error:
        return Finding(
            "cache folder",
            f"{folder} cannot be written: {error}",
            "problem",
            "set GPUPIPE_CACHE to a folder that can be",
        )
    observation = f"{folder}, {free / GIB:.1f} GiB free"
    if free < GIB:
        return Finding(
            "cache folder",
            observation,
            "warning",
            "free some space, or set GPUPIPE_CACHE to a folder on a larger disk",
        )
    return Finding("cache folder", observation, "ok")
