"""Judges NVIDIA's driver, the GPUs, and what DALI can decode on them.

Pure functions that do not query the machine. Each returns a Finding, with advice if it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpupipe.doctor.finding import Finding
from gpupipe.doctor.software_rules import parse_release
from gpupipe.runtime.capability_probe import JpegEngines, ProbeOutcome

DRIVERS = {11: 450, 12: 525, 13: 580}
"""The first driver of each CUDA major version, from docs.nvidia.com/deploy/cuda-compatibility."""
_CUDA_13 = (7, 5)
"""The oldest compute capability that CUDA 13 supports: Turing."""


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


def judge_driver(installed: Driver | None, needs: Mapping[str, int], card_on_bus: bool) -> Finding:
    """Judge whether the driver is new enough.

    Args:
        installed: The driver; None if there is none.
        needs: The CUDA major version that torch and DALI are built for, by package.
        card_on_bus: Whether the machine has an NVIDIA card.
    """
    if installed is None and card_on_bus:
        advice = (
            "install NVIDIA's driver, and nvidia-ml-py, which asks it; in a container: docker "
            "run --gpus all"
        )
        return Finding("driver", "none answers, but there is an NVIDIA card", "warning", advice)
    if installed is None:
        return Finding("driver", "none, and no NVIDIA card", "ok")
    version = (
        f"{installed.version}, runs CUDA {'.'.join(map(str, installed.cuda))}"
        if installed.cuda
        else installed.version
    )
    lacking = [
        f"{who} needs CUDA {major} (driver {DRIVERS.get(major, '?')} or newer)"
        for who, major in needs.items()
        if not runs_cuda(installed, major)
    ]
    if lacking:
        return Finding(
            "driver",
            f"{version}; {', '.join(lacking)}",
            "problem",
            "update NVIDIA's driver, or install packages for an older CUDA",
        )
    return Finding("driver", version, "ok")


def runs_cuda(installed: Driver, major: int) -> bool:
    """Return whether a driver runs programs for CUDA `major`.

    The CUDA version that the driver reports counts first, since a compatibility package can raise
    it. The driver's own version is the fallback.
    """
    if installed.cuda:
        return installed.cuda[0] >= major
    number = parse_release(installed.version)[:1]
    return not number or number >= (DRIVERS.get(major, 0),)


def judge_gpus(
    cards: Sequence[str], torch_cuda: str | None, seen: int, setting: str | None, torch_warning: str
) -> Finding:
    """Judge whether torch sees the GPUs.

    Args:
        cards: The cards that the driver sees.
        torch_cuda: torch's CUDA version; None for a CPU build.
        seen: How many GPUs torch sees.
        setting: The value of CUDA_VISIBLE_DEVICES; None if it is unset.
        torch_warning: torch's warning, or "".
    """
    there = "; ".join(cards)
    if seen:
        return Finding("GPU", f"{there or 'the driver does not say'} (torch sees {seen})", "ok")
    if not cards:
        return Finding("GPU", "none: everything runs on the CPU", "ok")
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
            "unset CUDA_VISIBLE_DEVICES to use it; until then everything runs on the CPU",
        )
    return Finding(
        "GPU",
        f"{there}, but torch sees none: {torch_warning or 'it does not say why'}",
        "problem",
        "update NVIDIA's driver, or install torch for its CUDA",
    )


def judge_card(number: int, name: str, capability: tuple[int, int], error: str) -> Finding:
    """Judge one GPU; `error` is torch's message if it cannot compute there, or ""."""
    subject, observation = (
        f"GPU {number}",
        f"{name}, compute capability {capability[0]}.{capability[1]}",
    )
    if error:
        return Finding(
            subject,
            f"{observation}; torch cannot compute on it: {error}",
            "problem",
            "free the card's memory, or install a torch that is built for this card",
        )
    return Finding(subject, observation, "ok")


def judge_decoding(subject: str, outcome: ProbeOutcome) -> Finding:
    """Judge whether DALI runs and decodes whole images on a device."""
    if outcome.decode:
        return Finding(subject, "runs, and decodes JPEG images", "ok")
    what = "cannot decode a JPEG image" if outcome.pipeline else "cannot run a pipeline"
    advice = (
        "reinstall DALI with what it depends on (pip install --force-reinstall "
        "nvidia-dali-cuda120, or -cuda130 for CUDA 13); on a GPU, see its driver too"
    )
    return Finding(subject, f"{what}: {outcome.reason}", "problem", advice)


def judge_region_decoding(subject: str, outcome: ProbeOutcome) -> Finding:
    """Judge whether DALI decodes regions of images on a GPU."""
    if not outcome.region:
        advice = "nothing to do: gpupipe decodes whole images there, then crops"
        return Finding(subject, f"not used: {outcome.reason}", "warning", advice)
    return Finding(subject, "works", "ok")


def judge_damaged_jpegs(
    subject: str,
    nvjpeg: str | None,
    capability: tuple[int, int],
    driver: Driver | None,
    cuda13_command: str,
) -> Finding:
    """Judge whether a damaged JPEG may crash nvJPEG, and advise CUDA 13 where it runs.

    The release notes of nvJPEG 13.0 say that it no longer crashes when it decodes malformed or
    truncated bitstreams. CUDA 13 needs a GPU of compute capability 7.5 or newer, and its driver.

    Args:
        subject: What the finding is about.
        nvjpeg: nvJPEG's version; None if it is not installed.
        capability: The GPU's compute capability.
        driver: The driver; None if it does not answer.
        cuda13_command: Installs DALI for CUDA 13.
    """
    if nvjpeg is None or parse_release(nvjpeg) >= (13,):
        return Finding(subject, f"nvJPEG {nvjpeg or 'of unknown version'}", "ok")
    observation = f"one may crash nvJPEG {nvjpeg}; 13.0 and newer are more robust"
    if driver is None or not runs_cuda(driver, 13) or capability < _CUDA_13:
        return Finding(subject, observation, "ok")
    advice = (
        "DALI for CUDA 13 brings a newer one, and runs here: pip uninstall -y "
        f"nvidia-dali-cuda120 nvidia-nvjpeg-cu12; {cuda13_command}"
    )
    return Finding(subject, observation, "warning", advice)


def has_jpeg_hardware(capability: tuple[int, int]) -> bool | None:
    """Return whether GPUs of a compute capability have JPEG engines.

    Returns None if only some have them: L4 and GeForce 40 are both 8.9.
    """
    if capability in ((8, 0), (9, 0)) or capability[0] in (10, 11):
        return True
    return None if capability >= (8, 7) else False


def judge_jpeg_decoder(subject: str, engines: JpegEngines, capability: tuple[int, int]) -> Finding:
    """Report the hardware JPEG decoder by nvJPEG's count, else by the compute capability."""
    if engines.number is not None:
        observation = (
            f"engines: {engines.number}, cores in each: {engines.cores}"
            if engines.number
            else "none: CUDA cores decode"
        )
        return Finding(subject, f"{observation} (counted by nvJPEG)", "ok")
    likely = {True: "likely there", False: "likely none", None: "unknown"}[
        has_jpeg_hardware(capability)
    ]
    observation = (
        f"{likely}, by compute capability {capability[0]}.{capability[1]}; nvJPEG gave no "
        f"answer: {engines.reason}"
    )
    return Finding(
        subject,
        observation,
        "warning",
        "loader.hw_decoder_load=0 keeps it out of the way, if decoding fails",
    )
