"""Lists all checks of `gpupipe doctor`; checks cores, memory, open files and the cache folder."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gpupipe.doctor import CheckResult, gpu_checks, judge, software_checks
from gpupipe.runtime.files import cache_dir
from gpupipe.runtime.memory import read_meminfo
from gpupipe.runtime.ranks import allowed_cores, cores
from gpupipe.runtime.systems import IS_POSIX

GIB = 2**30
_MIN_FILES, _ENOUGH_FILES = 4096, 65536


def run_checks() -> list[CheckResult]:
    """Run all checks. Never raises; takes some seconds, and longer on machines with GPUs."""
    return [result for subject, check in CHECKS.items() for result in run_check(subject, check)]


def run_check(subject: str, check: Callable[[], Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """Yield the results of a check; if it raises, yield a warning with the error."""
    try:
        yield from check()
    except Exception as e:
        observation = f"could not be examined: {type(e).__name__}: {e}"
        yield CheckResult(subject, observation, "warning", "please report this")


def judge_cores(usable: int, allowed: int, all_of_them: int) -> CheckResult:
    """Judge how many cores this process may use.

    Args:
        usable: The cores that its affinity and the quota of its control group allow.
        allowed: The cores that its affinity allows.
        all_of_them: The cores of the machine.
    """
    quota = f", quota of the control group {usable}" if usable < allowed else ""
    observation = f"{usable} usable (affinity {allowed}{quota}; the machine has {all_of_them})"
    advice = "give the process 2 or more: reading and decoding run beside training"
    return judge("cores", observation, (usable < 2, "warning", "", advice))


def _check_memory() -> Iterator[CheckResult]:
    if not (size := read_meminfo()):  # only Linux tells it
        return
    limit = read_memory_limit(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup"))
    yield judge_memory(size["MemTotal"], size["MemAvailable"], limit)


def judge_memory(total: int, available: int, limit: int | None) -> CheckResult:
    """Judge the total and the available memory of the machine, in bytes.

    `limit` is the memory limit of the control group in bytes; None without a limit.
    """
    observation = f"{total / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    if limit is not None and limit < total:
        observation += f"; the control group may use {limit / GIB:.1f} GiB"
        available = min(available, limit)
    advice = "use a smaller loader.batch_size and loader.prefetch, or free memory"
    return judge("memory", observation, (available < 2 * GIB, "warning", "", advice))


def read_memory_limit(membership: str, root: Path) -> int | None:
    """Return the lowest memory limit among this process's control groups and their parents.

    Args:
        membership: The text of /proc/self/cgroup.
        root: The folder where control groups are mounted.

    Returns:
        Bytes; None for no limit.
    """
    limits = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        file = "memory/memory.limit_in_bytes" if controllers else "memory.max"
        top, name = root / Path(file).parent, Path(file).name
        inner = Path(path.lstrip("/"))
        files = [top / part / name for part in (inner, *inner.parents)]
        texts = [file.read_text().strip() for file in files if file.is_file()]
        limits += [int(text) for text in texts if text.isdigit()]
    return min(limits, default=None)


def _check_shared_memory() -> Iterator[CheckResult]:
    if Path("/dev/shm").is_dir():
        disk = shutil.disk_usage("/dev/shm")
        yield judge_shared_memory(disk.total, disk.free)


def judge_shared_memory(size: int, free: int) -> CheckResult:
    """Judge the size and free space of /dev/shm in bytes."""
    observation = f"{size / GIB:.1f} GiB, {free / GIB:.1f} GiB free (/dev/shm)"
    advice = (
        "DataLoader workers pass batches through it: docker run --shm-size=8g, or "
        "remove what fills /dev/shm"
    )
    return judge("shared memory", observation, (free < GIB, "warning", "", advice))


def judge_open_files(soft: int, hard: int) -> CheckResult:
    """Judge the soft and hard limits of RLIMIT_NOFILE. A negative number means no limit."""
    limits = ("no limit" if soft < 0 else soft, "none" if hard < 0 else hard)
    needs_root = (
        "raise the hard limit as root (/etc/security/limits.conf, or docker run --ulimit "
        f"nofile={_ENOUGH_FILES}), then ulimit -n"
    )
    ulimit = f"ulimit -n {_ENOUGH_FILES if hard < 0 else min(hard, _ENOUGH_FILES)}"
    is_low = 0 <= soft < _MIN_FILES
    return judge(
        "open files",
        "{} (hard limit: {})".format(*limits),
        (is_low and 0 <= hard < _MIN_FILES, "warning", "", needs_root),
        (is_low, "warning", "", ulimit),
    )


def _check_cache_folder() -> Iterator[CheckResult]:
    """Check the cache folder by writing a file.

    Permission bits would not reveal a read-only file system.
    """
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as f:
            f.write(b"gpupipe")
        yield judge_cache_folder(folder, shutil.disk_usage(folder).free, "")
    except OSError as e:
        yield judge_cache_folder(folder, 0, str(e))


def judge_cache_folder(folder: Path, free: int, error: str) -> CheckResult:
    """Judge the cache folder by its free bytes, and by `error`.

    `error` is the message if a file could not be written there, else "".
    """
    failure, another = f"{folder} cannot be written: {error}", "set GPUPIPE_CACHE to a folder"
    return judge(
        "cache folder",
        f"{folder}, {free / GIB:.1f} GiB free",
        (error, "problem", failure, f"{another} that can be"),
        (free < GIB, "warning", "", f"free some space, or {another} on a larger disk"),
    )


def _check_open_files() -> Iterator[CheckResult]:
    if IS_POSIX:
        from resource import RLIMIT_NOFILE, getrlimit

        yield judge_open_files(*getrlimit(RLIMIT_NOFILE))


CHECKS: dict[str, Callable[[], Iterable[CheckResult]]] = {
    "gpupipe": software_checks.check_python,
    "packages": software_checks.check_packages,
    "extras": software_checks.check_extras,
    "kernels": software_checks.check_extensions,
    "DALI on the CPU": gpu_checks.check_cpu_decoding,
    "CUDA": gpu_checks.check_cuda,
    "driver": gpu_checks.check_driver,
    "GPU": gpu_checks.check_gpus,
    "cores": lambda: [judge_cores(cores(), len(allowed_cores()), os.cpu_count() or 1)],
    "memory": _check_memory,
    "shared memory": _check_shared_memory,
    "open files": _check_open_files,
    "cache folder": _check_cache_folder,
}
"""The checks by subject, in the order of the report."""
