"""All checks of `gpupipe doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpupipe.doctor import gpu_checks, machine_checks, software_checks
from gpupipe.doctor.finding import Finding

CHECKS: dict[str, Callable[[], Iterable[Finding]]] = {
    "gpupipe": software_checks.check_python,
    "packages": software_checks.check_packages,
    "extras": software_checks.check_extras,
    "kernels": software_checks.check_kernels,
    "DALI on the CPU": gpu_checks.check_cpu_decoding,
    "CUDA": gpu_checks.check_cuda,
    "driver": gpu_checks.check_driver,
    "GPU": gpu_checks.check_gpus,
    "cores": machine_checks.check_cores,
    "memory": machine_checks.check_memory,
    "shared memory": machine_checks.check_shared_memory,
    "open files": machine_checks.check_open_files,
    "cache folder": machine_checks.check_cache_folder,
}
"""The checks by subject, in the order of the report."""


def run_checks() -> list[Finding]:
    """Run all checks. Never raises; takes some seconds, and longer on machines with GPUs."""
    return [finding for subject, check in CHECKS.items() for finding in run_check(subject, check)]


def run_check(subject: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; if it raises, yield that as a finding."""
    try:
        yield from check()
    except Exception as e:
        observation = f"could not be examined: {type(e).__name__}: {e}"
        yield Finding(subject, observation, "warning", "please report this")
