"""Judges the versions of Python, torch, torchvision and DALI.

Pure functions that do not query the machine. Each returns a Finding, with advice if it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpupipe.doctor.finding import Finding

PYTHONS = ((3, 10), (3, 13))
NEEDS = {"torch": "2.11", "torchvision": "0.26", "nvidia-dali-cuda120": "2.4"}
"""The lowest version of each package. setup.cfg has the same versions, and a test compares them."""


def parse_release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: "2.15.0+cu132" is (2, 15, 0)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()


def judge_python(version: tuple[int, ...]) -> Finding:
    """Judge the Python version, (major, minor, micro)."""
    observation = ".".join(map(str, version))
    if PYTHONS[0] <= version[:2] <= PYTHONS[1]:
        return Finding("Python", observation, "ok")
    return Finding(
        "Python", observation, "problem", "make a virtual environment with Python 3.10 to 3.13"
    )


def judge_package(name: str, version: str | None) -> Finding:
    """Judge the version of a package in NEEDS, or of another DALI; None if it is not installed."""
    is_dali = name.startswith("nvidia-dali")
    subject, least = ("DALI", NEEDS["nvidia-dali-cuda120"]) if is_dali else (name, NEEDS[name])
    install = f"pip install '{name}>={least}'"
    if version is None:
        return Finding(subject, "not installed", "problem", install)
    if parse_release(version) < parse_release(least):
        return Finding(subject, f"{version}, and {least} or newer is needed", "problem", install)
    return Finding(subject, version, "ok")


def judge_torch_pair(
    torchvision_requires: Sequence[str], torch_version: str | None
) -> Iterator[Finding]:
    """Judge whether torchvision and torch fit together.

    Args:
        torchvision_requires: torchvision's requirements, such as "torch==2.6.0" or
            "torch (>=2.14.0)".
        torch_version: The installed torch; None if it is not installed.
    """
    for sign, least in re.findall(
        r"^torch *\(?(==|>=)([\d.]+)", "\n".join(torchvision_requires), re.MULTILINE
    ):
        wanted, there = parse_release(least), parse_release(torch_version or "")
        if there and (there < wanted or (sign == "==" and there != wanted)):
            yield Finding(
                "torchvision",
                f"is for torch {sign}{least}, and torch is {torch_version}",
                "problem",
                "pip install --upgrade torch torchvision, in one go",
            )


def judge_dali(packages: Mapping[str, str], has_gpu: bool) -> Finding:
    """Judge the installed DALI packages, names to versions. Two overwrite each other's files.

    Without a GPU, `engine: auto` does not need DALI.
    """
    if not packages and not has_gpu:
        return Finding("DALI", "not installed, and not needed without a GPU", "ok")
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
    judged = judge_package(name, version)
    return Finding("DALI", f"{judged.observation} ({name})", judged.status, judged.advice)


def judge_cuda(torch_cuda: str | None, torch_error: str, dali_cuda: Sequence[int]) -> Finding:
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


def judge_extra(extra: str, packages: Mapping[str, str | None], install: str) -> Finding:
    """Report whether the packages of an extra are installed. None of them has to be.

    Args:
        extra: The name of the extra in gpupipe's metadata.
        packages: The version of each package that it requires; None if it is not installed.
        install: The command that installs them.
    """
    missing = [name for name, version in packages.items() if version is None]
    there = [f"{name} {version}" for name, version in packages.items() if version is not None]
    lack = f"{' and '.join(missing)} not installed" if missing else ""
    return Finding(
        f"extra {extra}",
        "; ".join(filter(None, [", ".join(there), lack])),
        "ok",
        f"for what {EXTRAS[extra]}: {install}" if missing else "",
    )


def judge_kernels(variants: Sequence[str] | None, is_off: bool, rebuild: str) -> Finding:
    """Report whether `engine: cpu` has its kernels in C++. It runs without them.

    Args:
        variants: The instruction sets that they can use, the preferred one first; None if they do
            not run.
        is_off: Whether GPUPIPE_KERNELS=off.
        rebuild: The command that compiles the extensions again.
    """
    if variants:
        return Finding("kernels", f"of engine: cpu, in C++, with {variants[0]}", "ok")
    if is_off:
        return Finding("kernels", "of engine: cpu, in C++: off", "ok", "unset GPUPIPE_KERNELS")
    advice = (
        "for a faster engine: cpu: install a C++ compiler and Python's headers (apt-get install "
        f"g++ python3-dev), then {rebuild}"
    )
    return Finding("kernels", "of engine: cpu, in C++: not built", "ok", advice)


def judge_region_decoding(is_built: bool, is_off: bool, rebuild: str) -> Finding:
    """Report whether `engine: cpu` decodes parts of JPEGs. It runs without that.

    Args:
        is_built: Whether gpupipe._jpeg can be imported.
        is_off: Whether GPUPIPE_KERNELS=off.
        rebuild: The command that compiles the extensions again.
    """
    if is_built:
        return Finding("region decoding", "of engine: cpu, with libjpeg-turbo", "ok")
    if is_off:
        return Finding("region decoding", "of engine: cpu: off", "ok", "unset GPUPIPE_KERNELS")
    advice = (
        "to decode only the window of a crop: install a C++ compiler, Python's headers and "
        "libjpeg-turbo 2.1 or newer (apt-get install g++ python3-dev libjpeg-dev), then "
        f"{rebuild}"
    )
    return Finding("region decoding", "of engine: cpu: not built", "ok", advice)


EXTRAS = {
    "cpu": "a fast engine: cpu needs",
    "server": "gpupipe serve and gpupipe.connect() need",
    "remote": "source: remote needs",
    "parquet": "lists in .parquet files need",
    "hf": "source: hf needs",
    "zip": "a fast source: zip needs",
    "tfrecord": "verify: true of source: tfrecord needs",
    "ray": "engine: ray needs",
    "fetch": "gpupipe fetch needs",
    "compare": "gpupipe compare --out needs",
    "lightning": "gpupipe.lightning needs",
    "timm": "gpupipe.timm needs",
    "prometheus": "the export of gpupipe.monitor to Prometheus needs",
    "tensorboard": "the export of gpupipe.monitor to TensorBoard needs",
}
"""What needs the packages of each extra."""


def list_extra_packages(requirements: Sequence[str]) -> dict[str, list[str]]:
    """Return the packages of each extra in EXTRAS.

    Args:
        requirements: gpupipe's requirements, such as "pyzmq>=26; extra == 'server'".
    """
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        if name and extra:
            packages.setdefault(extra[1], []).append(name[0])
    return {extra: packages[extra] for extra in EXTRAS if extra in packages}
