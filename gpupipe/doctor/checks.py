"""Queries the machine for `gpupipe doctor`; the modules *_rules judge the answers."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from gpupipe.doctor import gpu_rules, machine_rules, software_rules
from gpupipe.doctor.finding import Finding
from gpupipe.doctor.gpu_rules import Driver
from gpupipe.runtime import compiled_extension, nvml
from gpupipe.runtime.cache_dir import cache_dir
from gpupipe.runtime.capability_probe import installed_version, jpeg_engines, probe
from gpupipe.runtime.capability_probe_child import NVJPEG
from gpupipe.runtime.devices import cores, gpu_count
from gpupipe.runtime.installation import find_distribution, install_command, rebuild_command

_PROBES_AT_ONCE = 4


def run_checks() -> list[Finding]:
    """Run all checks. Never raises; takes some seconds, and longer on machines with GPUs."""
    checks = {
        "gpupipe": _gpupipe,
        "packages": _packages,
        "extras": _extras,
        "kernels": _kernels,
        "DALI on the CPU": _cpu_decoding,
        "CUDA": _cuda,
        "driver": _driver_finding,
        "GPU": _gpus,
        "cores": _cores,
        "memory": _memory,
        "shared memory": _shared_memory,
        "open files": _open_files,
        "cache folder": _cache_folder,
    }
    return [finding for subject, check in checks.items() for finding in run_check(subject, check)]


def run_check(subject: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; if it raises, yield that as a finding."""
    try:
        yield from check()
    except Exception as e:
        yield Finding(
            subject,
            f"could not be examined: {type(e).__name__}: {e}",
            "warning",
            "please report this",
        )


# --- software


def _gpupipe() -> Iterator[Finding]:
    copy = find_distribution()
    version = copy.version if copy else "not installed, run from its folder"
    yield Finding("gpupipe", f"{version} on {platform.platform()}", "ok")
    yield software_rules.judge_python(sys.version_info[:3])


def _packages() -> Iterator[Finding]:
    """Judge the installed versions, without importing the packages."""
    for name in ("torch", "torchvision"):
        yield software_rules.judge_package(name, _installed(name))
    if _installed("torchvision"):
        yield from software_rules.judge_torch_pair(
            metadata.requires("torchvision") or [], _installed("torch")
        )
    yield software_rules.judge_dali(_dali_packages(), bool(nvml.cards()))


def _extras() -> Iterator[Finding]:
    copy = find_distribution()
    requirements = (copy and copy.requires) or []  # none if it is not installed
    for extra, packages in software_rules.list_extra_packages(requirements).items():
        versions = {name: _installed(name) for name in packages}
        yield software_rules.judge_extra(extra, versions, install_command(extra))


def _kernels() -> Iterator[Finding]:
    extension = compiled_extension.find_extension()
    is_off = os.environ.get(compiled_extension.VARIABLE) == "off"
    yield software_rules.judge_kernels(
        extension and extension.variants(), is_off, rebuild_command()
    )
    has_jpeg = compiled_extension.find_extension("_jpeg") is not None
    yield software_rules.judge_region_decoding(has_jpeg, is_off, rebuild_command())


def _installed(name: str) -> str | None:
    return installed_version([name])


def _dali_packages() -> dict[str, str]:
    """Return the version of each installed DALI package, of which each CUDA major has its own."""
    versions = {
        (d.metadata["Name"] or "").lower().replace("_", "-"): d.version
        for d in metadata.distributions()
    }
    return {
        name: version
        for name, version in versions.items()
        if re.fullmatch(r"nvidia-dali-(.+-)?cuda\d{3}", name)
    }


def _dali_cuda() -> list[int]:
    """Return the CUDA major version of each DALI package: nvidia-dali-cuda120 is for 12."""
    return [int(name[-3:]) // 10 for name in _dali_packages()]


def _cpu_decoding() -> Iterator[Finding]:
    if _dali_packages():
        yield gpu_rules.judge_decoding("DALI on the CPU", probe(None))


def _torch_cuda() -> tuple[str | None, str]:
    """Return the CUDA version that torch is built for, and the message if its import fails."""
    try:
        import torch
    except (ImportError, OSError) as e:
        return None, str(e)
    return torch.version.cuda, ""


def _cuda() -> Iterator[Finding]:
    yield software_rules.judge_cuda(*_torch_cuda(), _dali_cuda())


# --- driver and GPUs


def _driver_finding() -> Iterator[Finding]:
    built = {
        "torch": software_rules.parse_release(_torch_cuda()[0] or "")[:1],
        "DALI": tuple(_dali_cuda()[:1]),
    }
    yield gpu_rules.judge_driver(
        _driver(), {who: major[0] for who, major in built.items() if major}, _card_on_bus()
    )


def _driver() -> Driver | None:
    """Query the driver through NVML; None if the driver or the NVML package is missing."""
    with nvml.session() as library:
        if library is None:
            return None
        cards = tuple(
            _card(library, i) for i in range(nvml.query(library, 0, library.nvmlDeviceGetCount))
        )
        version = nvml.query(library, "of unknown version", library.nvmlSystemGetDriverVersion)
        return Driver(version, nvml.supported_cuda(library), cards)


def _card(library: Any, number: int) -> str:
    """Return the name and memory of a card, by NVML's number."""
    name = nvml.card_name(library, number)
    handle = nvml.query(library, None, library.nvmlDeviceGetHandleByIndex, number)
    memory = nvml.query(library, None, library.nvmlDeviceGetMemoryInfo, handle) if handle else None
    return f"{name}, {memory.total / machine_rules.GIB:.0f} GiB" if memory else name


def _card_on_bus() -> bool:
    """Return whether an NVIDIA display controller is on the PCI bus, with or without a driver."""
    kinds = [
        ((d / "vendor").read_text().strip(), (d / "class").read_text())
        for d in Path("/sys/bus/pci/devices").glob("*")
    ]
    return any(vendor == "0x10de" and kind.startswith("0x03") for vendor, kind in kinds)


def _gpus() -> Iterator[Finding]:
    torch_cuda, error = _torch_cuda()
    if error:
        return  # _cuda reports it
    with warnings.catch_warnings(record=True) as torch_warnings:
        warnings.simplefilter("always")
        seen = gpu_count()
    driver = _driver()
    yield gpu_rules.judge_gpus(
        driver.cards if driver else (),
        torch_cuda,
        seen,
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        str(torch_warnings[-1].message) if torch_warnings else "",
    )
    if not seen:
        yield Finding("hardware JPEG decoder", "none without a GPU: the CPU decodes", "ok")
        yield Finding("region-of-interest decoding", "on the CPU, where it works", "ok")
    with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
        for findings in pool.map(_gpu, range(seen)):
            yield from findings


def _gpu(number: int) -> list[Finding]:
    """Check one GPU, by torch's number."""
    import torch

    capability = torch.cuda.get_device_capability(number)
    findings = [
        gpu_rules.judge_card(
            number, torch.cuda.get_device_name(number), capability, _compute_error(number)
        )
    ]
    if _dali_packages():
        outcome = probe(number)
        findings.append(gpu_rules.judge_decoding(f"GPU {number}: DALI", outcome))
        if outcome.decode:
            subject = f"GPU {number}: region-of-interest decoding"
            findings.append(gpu_rules.judge_region_decoding(subject, outcome))
        findings.append(
            gpu_rules.judge_damaged_jpegs(
                f"GPU {number}: damaged JPEGs",
                installed_version(NVJPEG),
                capability,
                _driver(),
                install_command("cuda13"),
            )
        )
    return [
        *findings,
        gpu_rules.judge_jpeg_decoder(
            f"GPU {number}: hardware JPEG decoder", jpeg_engines(number), capability
        ),
    ]


def _compute_error(number: int) -> str:
    """Return the message if torch cannot compute on a GPU, else "".

    Its memory may be full, or torch may not be built for such a card.
    """
    import torch

    try:
        torch.ones(2, device=f"cuda:{number}").sum().item()
    except RuntimeError as e:
        return str(e).splitlines()[0]
    return ""


# --- the machine


def _cores() -> Iterator[Finding]:
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    yield machine_rules.judge_processors(cores(), allowed, os.cpu_count() or 1)


def _memory() -> Iterator[Finding]:
    words = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    size = {w[0].rstrip(":"): int(w[1]) * 1024 for w in words}
    limit = machine_rules.read_memory_limit(
        Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup")
    )
    yield machine_rules.judge_memory(size["MemTotal"], size["MemAvailable"], limit)


def _shared_memory() -> Iterator[Finding]:
    if Path("/dev/shm").is_dir():
        disk = shutil.disk_usage("/dev/shm")
        yield machine_rules.judge_shared_memory(disk.total, disk.free)


def _open_files() -> Iterator[Finding]:
    import resource

    yield machine_rules.judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def _cache_folder() -> Iterator[Finding]:
    """Try to write a file: permission bits ignore read-only file systems, and root ignores them."""
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as f:
            f.write(b"gpupipe")
        yield machine_rules.judge_cache_folder(folder, shutil.disk_usage(folder).free, "")
    except OSError as e:
        yield machine_rules.judge_cache_folder(folder, 0, str(e))
