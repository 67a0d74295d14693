"""Checks CUDA, NVIDIA's driver, the GPUs, and whether DALI decodes on the GPUs and the CPU."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpupipe.doctor import CheckResult, judge
from gpupipe.doctor.software_checks import dali_packages
from gpupipe.runtime.capability_probe import JpegEngines, ProbeOutcome, jpeg_engines, probe
from gpupipe.runtime.capability_probe_child import NVJPEG
from gpupipe.runtime.devices import Driver, find_driver, gpu_count
from gpupipe.runtime.installation import install_command, installed_version, parse_release

DRIVERS = {11: 450, 12: 525, 13: 580}
"""The first driver of each CUDA major version, from docs.nvidia.com/deploy/cuda-compatibility."""
_CUDA_13 = (7, 5)
"""The oldest compute capability that CUDA 13 supports: Turing."""
_PROBES_AT_ONCE = 4


def _dali_cuda() -> list[int]:
    """Return the CUDA major version of each installed DALI package: 12 for nvidia-dali-cuda120."""
    return [int(name[-3:]) // 10 for name in dali_packages()]


def _torch_cuda() -> tuple[str | None, str]:
    """Return torch's CUDA version, and the error message if torch cannot be imported, else "".

    The version is None for a CPU build, and if torch cannot be imported.
    """
    try:
        import torch
    except (ImportError, OSError) as e:
        return None, str(e)
    return torch.version.cuda, ""


def check_cuda() -> Iterator[CheckResult]:
    """Report the CUDA versions that torch and DALI are built for."""
    yield judge_cuda(*_torch_cuda(), _dali_cuda())


def judge_cuda(torch_cuda: str | None, torch_error: str, dali_cuda: Sequence[int]) -> CheckResult:
    """Report the CUDA versions of torch and DALI; it is a problem if torch cannot be imported.

    Args:
        torch_cuda: torch's CUDA version; None for a CPU build.
        torch_error: The message of the failed `import torch`, or "".
        dali_cuda: The CUDA major version of each installed DALI package.
    """
    torch = f"torch for {torch_cuda or 'the CPU only'}"
    failure = f"torch cannot be imported: {torch_error}"
    return judge(
        "CUDA",
        ", ".join([torch, *(f"DALI for {major}" for major in dali_cuda)]),
        (torch_error, "problem", failure, "pip install --force-reinstall torch"),
    )


def check_driver() -> Iterator[CheckResult]:
    """Check whether the driver is new enough for torch and DALI."""
    needs = {"torch": parse_release(_torch_cuda()[0] or ""), "DALI": _dali_cuda()}
    majors = {package: versions[0] for package, versions in needs.items() if versions}
    yield judge_driver(find_driver(), majors, _has_card_on_bus())


def _has_card_on_bus() -> bool:
    """Return whether an NVIDIA display controller is on the PCI bus, with or without a driver."""
    return any(
        (d / "vendor").read_text().strip() == "0x10de"
        and (d / "class").read_text().startswith("0x03")
        for d in Path("/sys/bus/pci/devices").glob("*")
    )


def judge_driver(
    installed: Driver | None, needs: Mapping[str, int], card_on_bus: bool
) -> CheckResult:
    """Judge whether the driver is new enough.

    Args:
        installed: The driver; None if there is none.
        needs: The CUDA major version that torch and DALI are built for, by package.
        card_on_bus: Whether an NVIDIA card is on the PCI bus.
    """
    if installed is None:
        advice = (
            "install NVIDIA's driver, and nvidia-ml-py, which asks it; in a container: docker "
            "run --gpus all"
        )
        none, silent = "none, and no NVIDIA card", "none answers, but there is an NVIDIA card"
        return judge("driver", none, (card_on_bus, "warning", silent, advice))
    cuda = f", runs CUDA {'.'.join(map(str, installed.cuda))}" if installed.cuda else ""
    lacking = ", ".join(
        f"{who} needs CUDA {major} (driver {DRIVERS.get(major, '?')} or newer)"
        for who, major in needs.items()
        if not runs_cuda(installed, major)
    )
    version = f"{installed.version}{cuda}"
    advice = "update NVIDIA's driver, or install packages for an older CUDA"
    return judge("driver", version, (lacking, "problem", f"{version}; {lacking}", advice))


def runs_cuda(installed: Driver, major: int) -> bool:
    """Return whether a driver runs programs for CUDA `major`.

    The CUDA version that the driver reports decides, since a compatibility package can raise that
    version. If the driver reports none, the version of the driver decides.
    """
    if installed.cuda:
        return installed.cuda[0] >= major
    number = parse_release(installed.version)[:1]
    return not number or number >= (DRIVERS.get(major, 0),)


def check_gpus() -> Iterator[CheckResult]:
    """Check whether torch sees the GPUs, and then check each GPU."""
    torch_cuda, error = _torch_cuda()
    if error:
        return  # check_cuda reports it
    with warnings.catch_warnings(record=True) as torch_warnings:
        warnings.simplefilter("always")
        seen = gpu_count()
    driver, hidden = find_driver(), os.environ.get("CUDA_VISIBLE_DEVICES")
    warning = str(torch_warnings[-1].message) if torch_warnings else ""
    yield judge_gpus(driver.cards if driver else (), torch_cuda, seen, hidden, warning)
    if not seen:
        yield CheckResult("hardware JPEG decoder", "none without a GPU: the CPU decodes")
        yield CheckResult("region-of-interest decoding", "on the CPU, where it works")
    with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
        for results in pool.map(_check_gpu, range(seen)):
            yield from results


def judge_gpus(
    cards: Sequence[str], torch_cuda: str | None, seen: int, setting: str | None, torch_warning: str
) -> CheckResult:
    """Judge whether torch sees the GPUs.

    Args:
        cards: The cards that the driver sees.
        torch_cuda: torch's CUDA version; None for a CPU build.
        seen: How many GPUs torch sees.
        setting: The value of CUDA_VISIBLE_DEVICES; None if it is unset.
        torch_warning: The warning of torch when it looked for GPUs, or "".
    """
    names = "; ".join(cards)
    hidden = f"{names}, hidden by CUDA_VISIBLE_DEVICES={setting!r}"
    unset = "unset CUDA_VISIBLE_DEVICES to use it; until then everything runs on the CPU"
    without_cuda = f"{names}, but torch is built without CUDA"
    for_cuda = "install torch for CUDA: see pytorch.org/get-started"
    unseen = f"{names}, but torch sees none: {torch_warning or 'it does not say why'}"
    return judge(
        "GPU",
        f"{names or 'the driver does not say'} (torch sees {seen})",
        (not seen and not cards, "ok", "none: everything runs on the CPU", ""),
        (not seen and torch_cuda is None, "problem", without_cuda, for_cuda),
        (not seen and setting is not None, "warning", hidden, unset),
        (not seen, "problem", unseen, "update NVIDIA's driver, or install torch for its CUDA"),
    )


def _check_gpu(number: int) -> list[CheckResult]:
    """Check the GPU that has this number in torch."""
    import torch

    capability, gpu = torch.cuda.get_device_capability(number), f"GPU {number}"
    name = torch.cuda.get_device_name(number)
    results = [judge_card(number, name, capability, _compute_error(number))]
    if dali_packages():
        outcome, nvjpeg = probe(number), installed_version(*NVJPEG)
        results.append(judge_decoding(f"{gpu}: DALI", outcome))
        if outcome.decode:
            region = judge_region_decoding(f"{gpu}: region-of-interest decoding", outcome)
            results.append(region)
        driver, command = find_driver(), install_command("cuda13")
        damaged = f"{gpu}: damaged JPEGs"
        results.append(judge_damaged_jpegs(damaged, nvjpeg, capability, driver, command))
    hardware = f"{gpu}: hardware JPEG decoder"
    return [*results, judge_jpeg_decoder(hardware, jpeg_engines(number))]


def _compute_error(number: int) -> str:
    """Return torch's error message if torch cannot compute on a GPU, else "".

    The GPU's memory may be full, or torch may not be built for the card.
    """
    import torch

    try:
        torch.ones(2, device=f"cuda:{number}").sum().item()
    except RuntimeError as e:
        return str(e).splitlines()[0]
    return ""


def judge_card(number: int, name: str, capability: tuple[int, int], error: str) -> CheckResult:
    """Judge one GPU; `error` is torch's message if torch cannot compute on it, or ""."""
    observation = f"{name}, compute capability {capability[0]}.{capability[1]}"
    failure = f"{observation}; torch cannot compute on it: {error}"
    advice = "free the card's memory, or install a torch that is built for this card"
    return judge(f"GPU {number}", observation, (error, "problem", failure, advice))


def check_cpu_decoding() -> Iterator[CheckResult]:
    """Check that DALI, if it is installed, decodes images on the CPU."""
    if dali_packages():
        yield judge_decoding("DALI on the CPU", probe(None))


def judge_decoding(subject: str, outcome: ProbeOutcome) -> CheckResult:
    """Judge whether DALI runs and decodes whole images on a device."""
    failure = "cannot decode a JPEG image" if outcome.pipeline else "cannot run a pipeline"
    advice = (
        "reinstall DALI with what it depends on (pip install --force-reinstall "
        "nvidia-dali-cuda120, or -cuda130 for CUDA 13); on a GPU, see its driver too"
    )
    return judge(
        subject,
        "runs, and decodes JPEG images",
        (not outcome.decode, "problem", f"{failure}: {outcome.reason}", advice),
    )


def judge_region_decoding(subject: str, outcome: ProbeOutcome) -> CheckResult:
    """Judge whether DALI decodes regions of images on a GPU."""
    failure = f"not used: {outcome.reason}"
    advice = "nothing to do: gpupipe decodes whole images there, then crops"
    return judge(subject, "works", (not outcome.region, "warning", failure, advice))


def judge_damaged_jpegs(
    subject: str,
    nvjpeg: str | None,
    capability: tuple[int, int],
    driver: Driver | None,
    cuda13_command: str,
) -> CheckResult:
    """Judge whether a damaged JPEG may crash nvJPEG, and advise CUDA 13 where it runs.

    The release notes of nvJPEG 13.0 say that it no longer crashes when it decodes malformed or
    truncated bitstreams. CUDA 13 needs a GPU of compute capability 7.5 or newer, and a driver for
    CUDA 13.

    Args:
        subject: The subject of the result, such as "GPU 0: damaged JPEGs".
        nvjpeg: nvJPEG's version; None if it is not installed.
        capability: The GPU's compute capability.
        driver: The driver; None if it does not answer.
        cuda13_command: The command that installs DALI for CUDA 13.
    """
    is_old = nvjpeg is not None and parse_release(nvjpeg) < (13,)
    is_supported = driver is not None and runs_cuda(driver, 13) and capability >= _CUDA_13
    danger = f"one may crash nvJPEG {nvjpeg}; 13.0 and newer are more robust"
    advice = (
        "DALI for CUDA 13 brings a newer one, and runs here: pip uninstall -y "
        f"nvidia-dali-cuda120 nvidia-nvjpeg-cu12; {cuda13_command}"
    )
    return judge(
        subject,
        f"nvJPEG {nvjpeg or 'of unknown version'}",
        (is_old and is_supported, "warning", danger, advice),
        (is_old, "ok", danger, ""),
    )


def judge_jpeg_decoder(subject: str, engines: JpegEngines) -> CheckResult:
    """Report how many JPEG engines nvJPEG counts."""
    counted = f"engines: {engines.number}, cores in each: {engines.cores}"
    unknown = f"unknown: nvJPEG gave no answer: {engines.reason}"
    advice = "loader.hw_decoder_load=0 keeps it out of the way, if decoding fails"
    return judge(
        subject,
        f"{counted if engines.number else 'none: CUDA cores decode'} (counted by nvJPEG)",
        (engines.number is None, "warning", unknown, advice),
    )
