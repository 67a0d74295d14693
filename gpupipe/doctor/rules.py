"""Judges the values that `gpupipe doctor` finds: pure functions that do not query the machine.

Each returns a Finding, with the advice if the value will not do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpupipe.runtime.capability_probe import JpegEngines, ProbeOutcome

PYTHONS = ((3, 10), (3, 13))
NEEDS = {"torch": "2.6", "torchvision": "0.21", "nvidia-dali-cuda120": "2.4"}
"""The lowest version of each package. setup.cfg has the same versions, and a test compares them."""
DRIVERS = {11: 450, 12: 525, 13: 580}
"""The first driver of each CUDA major version, from docs.nvidia.com/deploy/cuda-compatibility."""
GIB = 2**30
_FEWEST_FILES = 4096
_ENOUGH_FILES = 65536


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: What was checked.
        found: What it is.
        status: Whether that is sufficient.
        advice: What to do if it is not.

    """

    subject: str
    found: str
    status: Literal["ok", "warning", "problem"]
    advice: str = ""


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        version: Its version.
        cuda: The CUDA version that it supports, (major, minor); None if NVML has no answer.
        cards: The names and memory sizes of the cards that it sees.

    """

    version: str
    cuda: tuple[int, int] | None
    cards: tuple[str, ...]


def release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: "2.15.0+cu132" is (2, 15, 0)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()


# --- software


def python(version: tuple[int, ...]) -> Finding:
    """Judge the Python version, (major, minor, micro)."""
    found = ".".join(map(str, version))
    if PYTHONS[0] <= version[:2] <= PYTHONS[1]:
        return Finding("Python", found, "ok")
    return Finding(
        "Python", found, "problem", "make a virtual environment with Python 3.10 to 3.13"
    )


def package(name: str, version: str | None) -> Finding:
    """Judge the version of a package in NEEDS, or of another DALI; None if it is not installed."""
    subject, least = (
        ("DALI", NEEDS["nvidia-dali-cuda120"]) if "dali" in name else (name, NEEDS[name])
    )
    install = f"pip install '{name}>={least}'"
    if version is None:
        return Finding(subject, "not installed", "problem", install)
    if release(version) < release(least):
        return Finding(subject, f"{version}, and {least} or newer is needed", "problem", install)
    return Finding(subject, version, "ok")


def pair(torchvision_requires: Sequence[str], torch_version: str | None) -> Iterator[Finding]:
    """Judge whether torchvision and torch fit together.

    Args:
        torchvision_requires: torchvision's requirements, such as "torch==2.6.0" or
            "torch (>=2.14.0)".
        torch_version: The installed torch; None if it is not installed.

    """
    for sign, least in re.findall(
        r"^torch *\(?(==|>=)([\d.]+)", "\n".join(torchvision_requires), re.MULTILINE
    ):
        wanted, there = release(least), release(torch_version or "")
        if there and (there < wanted or (sign == "==" and there != wanted)):
            yield Finding(
                "torchvision",
                f"is for torch {sign}{least}, and torch is {torch_version}",
                "problem",
                "pip install --upgrade torch torchvision, in one go",
            )


def dali(packages: Mapping[str, str]) -> Finding:
    """Judge the installed DALI packages, names to versions. Two overwrite each other's files."""
    if len(packages) > 1:
        remove = (
            f"uninstall all and install one: pip uninstall -y {' '.join(packages)}; pip install "
            "nvidia-dali-cuda120"
        )
        return Finding(
            "DALI",
            f"{len(packages)} of them, over each other's files: {', '.join(packages)}",
            "problem",
            remove,
        )
    name, version = next(iter(packages.items()), ("nvidia-dali-cuda120", None))
    judged = package(name, version)
    return Finding("DALI", f"{judged.found} ({name})", judged.status, judged.advice)


def cuda(torch_cuda: str | None, torch_error: str, dali_cuda: Sequence[int]) -> Finding:
    """Report the CUDA versions that torch and DALI are built for.

    Args:
        torch_cuda: torch's CUDA version; None for a CPU build.
        torch_error: The message of the failed `import torch`, or "".
        dali_cuda: The CUDA major version of each DALI package.

    """
    built = [
        f"torch for {torch_cuda}" if torch_cuda else "torch for the CPU only",
        *(f"DALI for {major}" for major in dali_cuda),
    ]
    if torch_error:
        return Finding(
            "CUDA",
            f"torch cannot be imported: {torch_error}",
            "problem",
            "pip install --force-reinstall torch",
        )
    return Finding("CUDA", ", ".join(built), "ok")


# --- driver and GPUs


def driver(found: Driver | None, needs: Mapping[str, int], card_on_bus: bool) -> Finding:
    """Judge whether the driver is new enough.

    Args:
        found: The driver; None if there is none.
        needs: The CUDA major version that torch and DALI are built for, by package.
        card_on_bus: Whether the machine has an NVIDIA card.

    """
    if found is None and card_on_bus:
        advice = (
            "install NVIDIA's driver, and nvidia-ml-py, which asks it; in a container: docker "
            "run --gpus all"
        )
        return Finding("driver", "none answers, but there is an NVIDIA card", "warning", advice)
    if found is None:
        return Finding("driver", "none, and no NVIDIA card", "ok")
    version = (
        f"{found.version}, runs CUDA {'.'.join(map(str, found.cuda))}"
        if found.cuda
        else found.version
    )
    lacking = [
        f"{who} needs CUDA {major} (driver {DRIVERS.get(major, '?')} or newer)"
        for who, major in needs.items()
        if not runs(found, major)
    ]
    if lacking:
        return Finding(
            "driver",
            f"{version}; {', '.join(lacking)}",
            "problem",
            "update NVIDIA's driver, or install packages for an older CUDA",
        )
    return Finding("driver", version, "ok")


def runs(found: Driver, major: int) -> bool:
    """Return whether a driver runs programs for CUDA `major`.

    The CUDA version that the driver reports counts first, since a compatibility package can raise
    it. The driver's own version is the fallback.
    """
    if found.cuda:
        return found.cuda[0] >= major
    number = release(found.version)[:1]
    return not number or number >= (DRIVERS.get(major, 0),)


def gpus(
    cards: Sequence[str], torch_cuda: str | None, seen: int, setting: str | None, said: str
) -> Finding:
    """Judge whether torch sees the GPUs.

    Args:
        cards: The cards that the driver sees.
        torch_cuda: torch's CUDA version; None for a CPU build.
        seen: How many GPUs torch sees.
        setting: The value of CUDA_VISIBLE_DEVICES; None if it is unset.
        said: torch's warning, or "".

    """
    there = "; ".join(cards)
    if seen:
        return Finding("GPU", f"{there or 'the driver does not say'} (torch sees {seen})", "ok")
    if not cards:
        return Finding("GPU", "none: everything runs on the CPU back end", "ok")
    if torch_cuda is None:
        return Finding(
            "GPU",
            f"{there}, but torch is built without CUDA",
            "problem",
            "install torch for CUDA: see pytorch.org/get-started",
        )
    if setting is not None:
        return Finding(
            "GPU",
            f"{there}, hidden by CUDA_VISIBLE_DEVICES={setting!r}",
            "warning",
            "unset CUDA_VISIBLE_DEVICES to use it; the CPU back end runs",
        )
    return Finding(
        "GPU",
        f"{there}, but torch sees none: {said or 'it does not say why'}",
        "problem",
        "update NVIDIA's driver, or install torch for its CUDA",
    )


def card(number: int, name: str, capability: tuple[int, int], error: str) -> Finding:
    """Judge one GPU; `error` is torch's message if it cannot compute there, or ""."""
    subject, found = f"GPU {number}", f"{name}, compute capability {capability[0]}.{capability[1]}"
    if error:
        return Finding(
            subject,
            f"{found}; torch cannot compute on it: {error}",
            "problem",
            "free the card's memory, or install a torch that is built for this card",
        )
    return Finding(subject, found, "ok")


def decoding(subject: str, outcome: ProbeOutcome) -> Finding:
    """Judge whether DALI runs and decodes whole images on a device."""
    if outcome.decode:
        return Finding(subject, "runs, and decodes JPEG images", "ok")
    what = "cannot decode a JPEG image" if outcome.pipeline else "cannot run a pipeline"
    advice = (
        "reinstall DALI with what it depends on (pip install --force-reinstall); on a GPU, "
        "see its driver too"
    )
    return Finding(subject, f"{what}: {outcome.reason}", "problem", advice)


def region(subject: str, outcome: ProbeOutcome, nvjpeg: str | None) -> Finding:
    """Judge whether DALI decodes regions of images on a GPU.

    With nvJPEG below 13.2, nvImageCodec 0.9 refuses regions of images with subsampled chroma, and
    the CPU decodes them, as a message in its library says.

    Args:
        subject: What the finding is about.
        outcome: The result of the capability probe.
        nvjpeg: nvJPEG's version; None if it is not installed.

    """
    if not outcome.region:
        advice = "nothing to do: gpupipe decodes whole images there, then crops"
        return Finding(subject, f"not used: {outcome.reason}", "warning", advice)
    old = nvjpeg is not None and release(nvjpeg) < (13, 2)
    return Finding(
        subject,
        "works"
        + (
            f"; nvJPEG {nvjpeg}, below 13.2, leaves images with subsampled chroma to the CPU"
            if old
            else ""
        ),
        "ok",
    )


def jpeg_hardware(capability: tuple[int, int]) -> bool | None:
    """Return whether GPUs of a compute capability have JPEG engines.

    Returns None if only some have them: L4 and GeForce 40 are both 8.9.
    """
    if capability in ((8, 0), (9, 0)) or capability[0] in (10, 11):
        return True
    return None if capability >= (8, 7) else False


def jpeg(subject: str, engines: JpegEngines, capability: tuple[int, int]) -> Finding:
    """Report the hardware JPEG decoder by nvJPEG's count, else by the compute capability."""
    if engines.number is not None:
        found = (
            f"engines: {engines.number}, cores in each: {engines.cores}"
            if engines.number
            else "none: CUDA cores decode"
        )
        return Finding(subject, f"{found} (counted by nvJPEG)", "ok")
    likely = {True: "likely there", False: "likely none", None: "unknown"}[
        jpeg_hardware(capability)
    ]
    found = (
        f"{likely}, by compute capability {capability[0]}.{capability[1]}; nvJPEG gave no "
        f"answer: {engines.reason}"
    )
    return Finding(
        subject,
        found,
        "warning",
        "loader.hw_decoder_load=0 keeps it out of the way, if decoding fails",
    )


# --- the machine


def processors(usable: int, allowed: int, all_of_them: int) -> Finding:
    """Judge the cores: `usable` by affinity and quota, `allowed` by affinity alone."""
    quota = f", quota of the control group {usable}" if usable < allowed else ""
    found = f"{usable} usable (affinity {allowed}{quota}; the machine has {all_of_them})"
    if usable < 2:
        return Finding(
            "cores",
            found,
            "warning",
            "give the process 2 or more: reading and decoding run beside training",
        )
    return Finding("cores", found, "ok")


def memory(total: int, available: int, limit: int | None) -> Finding:
    """Judge the memory in bytes; `limit` is that of the control group, None for no limit."""
    found = f"{total / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    if limit is not None and limit < total:
        found, available = (
            f"{found}; the control group may use {limit / GIB:.1f} GiB",
            min(available, limit),
        )
    if available < 2 * GIB:
        return Finding(
            "memory",
            found,
            "warning",
            "use a smaller loader.batch_size and loader.prefetch, or free memory",
        )
    return Finding("memory", found, "ok")


def memory_limit(membership: str, root: Path) -> int | None:
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


def shared_memory(size: int, free: int) -> Finding:
    """Judge the size and free space of /dev/shm in bytes."""
    found = f"{size / GIB:.1f} GiB, {free / GIB:.1f} GiB free (/dev/shm)"
    if free < GIB:
        return Finding(
            "shared memory",
            found,
            "warning",
            "DataLoader workers pass batches through it: docker run --shm-size=8g, or "
            "remove what fills /dev/shm",
        )
    return Finding("shared memory", found, "ok")


def open_files(soft: int, hard: int) -> Finding:
    """Judge the soft and hard limits of RLIMIT_NOFILE; negative is no limit."""
    found = f"{soft if soft >= 0 else 'no limit'} (hard limit: {hard if hard >= 0 else 'none'})"
    if not 0 <= soft < _FEWEST_FILES:
        return Finding("open files", found, "ok")
    if 0 <= hard < _FEWEST_FILES:
        advice = (
            "raise the hard limit as root (/etc/security/limits.conf, or docker run --ulimit "
            f"nofile={_ENOUGH_FILES}), then ulimit -n"
        )
        return Finding("open files", found, "warning", advice)
    return Finding(
        "open files",
        found,
        "warning",
        f"ulimit -n {_ENOUGH_FILES if hard < 0 else min(hard, _ENOUGH_FILES)}",
    )


def cache(folder: Path, free: int, error: str) -> Finding:
    """Judge the cache folder: `free` bytes, and `error`, the message of a failed write."""
    if error:
        return Finding(
            "cache folder",
            f"{folder} cannot be written: {error}",
            "problem",
            "set GPUPIPE_CACHE to a folder that can be",
        )
    found = f"{folder}, {free / GIB:.1f} GiB free"
    if free < GIB:
        return Finding(
            "cache folder",
            found,
            "warning",
            "free some space, or set GPUPIPE_CACHE to a folder on a larger disk",
        )
    return Finding("cache folder", found, "ok")
