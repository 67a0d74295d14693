"""Checks Python, the required packages, the packages of extras, and the compiled extensions."""

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata

from gpupipe.doctor import CheckResult, judge
from gpupipe.runtime.devices import find_driver
from gpupipe.runtime.installation import (
    KERNELS_VARIABLE,
    find_distribution,
    find_extension,
    install_command,
    installed_version,
    list_requirements,
    parse_release,
    rebuild_command,
)
from gpupipe.runtime.systems import IS_POSIX

PYTHONS = ((3, 11), (3, 13))
NEEDS = {"torch": "2.11", "torchvision": "0.26", "nvidia-dali-cuda120": "2.4"}
"""The lowest version of each package. setup.cfg has the same versions, and a test compares them."""
EXTRAS = {
    "cpu": "a fast engine: cpu",
    "heic": "images in HEIC",
    "jpegxl": "images in JPEG XL",
    "server": "gpupipe serve and gpupipe.connect()",
    "remote": "source: remote",
    "obstore": "faster fetches of shards from S3 and web servers",
    "coco": "source: coco",
    "hdf5": "source: hdf5",
    "zarr": "source: zarr",
    "parquet": "lists in .parquet files",
    "hf": "source: hf",
    "zip": "a fast source: zip",
    "tfrecord": "verify: true of source: tfrecord",
    "ray": "engine: ray",
    "fetch": "gpupipe fetch",
    "compare": "gpupipe compare --out",
    "inspect": "gpupipe inspect",
    "lightning": "gpupipe.lightning",
    "timm": "gpupipe.timm",
    "prometheus": "the export of gpupipe.monitor to Prometheus",
    "tensorboard": "the export of gpupipe.monitor to TensorBoard",
}
"""The feature that needs the packages of each extra."""


def check_python() -> Iterator[CheckResult]:
    """Report the version of gpupipe, and check the version of Python."""
    copy = find_distribution()
    version = copy.version if copy else "not installed, run from its folder"
    yield CheckResult("gpupipe", f"{version} on {platform.platform()}")
    yield judge_python(sys.version_info[:3])


def judge_python(version: tuple[int, ...]) -> CheckResult:
    """Judge the Python version, (major, minor, micro)."""
    observation = ".".join(map(str, version))
    advice = "make a virtual environment with Python 3.11 to 3.13"
    is_other = not PYTHONS[0] <= version[:2] <= PYTHONS[1]
    return judge("Python", observation, (is_other, "problem", "", advice))


def check_packages() -> Iterator[CheckResult]:
    """Check the versions of torch, torchvision and DALI, without importing them."""
    torch, torchvision = installed_version("torch"), installed_version("torchvision")
    yield judge_package("torch", torch)
    yield judge_package("torchvision", torchvision)
    if torchvision:
        yield from judge_torch_pair(metadata.requires("torchvision") or [], torch)
    driver = find_driver()
    yield judge_dali(dali_packages(), bool(driver and driver.cards))


def dali_packages() -> dict[str, str]:
    """Return the version of each installed DALI package; there is one package per CUDA version."""
    versions = {
        (d.metadata["Name"] or "").lower().replace("_", "-"): d.version
        for d in metadata.distributions()
    }
    is_dali = re.compile(r"nvidia-dali-(.+-)?cuda\d{3}").fullmatch
    return {name: version for name, version in versions.items() if is_dali(name)}


def judge_package(name: str, version: str | None) -> CheckResult:
    """Judge the version of torch, torchvision or a DALI package; None means not installed."""
    is_dali = name.startswith("nvidia-dali")
    lowest = NEEDS["nvidia-dali-cuda120" if is_dali else name]
    is_old = parse_release(version or "") < parse_release(lowest)
    install = f"pip install '{name}>={lowest}'"
    return judge(
        "DALI" if is_dali else name,
        str(version),
        (version is None, "problem", "not installed", install),
        (is_old, "problem", f"{version}, and {lowest} or newer is needed", install),
    )


def judge_torch_pair(
    torchvision_requires: Sequence[str], torch_version: str | None
) -> Iterator[CheckResult]:
    """Yield a problem if the installed torch does not meet torchvision's requirements.

    Args:
        torchvision_requires: torchvision's requirements, such as "torch==2.6.0" or
            "torch (>=2.14.0)".
        torch_version: The version of torch; None if torch is not installed.
    """
    there, requirements = parse_release(torch_version or ""), "\n".join(torchvision_requires)
    for sign, lowest in re.findall(r"(?m)^torch *\(?(==|>=)([\d.]+)", requirements):
        wanted = parse_release(lowest)
        if there and (there < wanted or (sign == "==" and there != wanted)):
            observation = f"is for torch {sign}{lowest}, and torch is {torch_version}"
            advice = "pip install --upgrade torch torchvision, in one go"
            yield CheckResult("torchvision", observation, "problem", advice)


def judge_dali(packages: Mapping[str, str], has_gpu: bool) -> CheckResult:
    """Judge the installed DALI packages. `packages` maps their names to their versions.

    Two packages are a problem, because they overwrite each other's files. Without a GPU, none is
    needed, since `engine: auto` then does not need DALI.
    """
    if not packages and not has_gpu:
        return CheckResult("DALI", "not installed, and not needed without a GPU")
    if len(packages) > 1:
        observation = f"{len(packages)} of them, over each other's files: {', '.join(packages)}"
        advice = (
            f"uninstall all and install one: pip uninstall -y {' '.join(packages)}; pip install "
            "nvidia-dali-cuda120"
        )
        return CheckResult("DALI", observation, "problem", advice)
    name, version = next(iter(packages.items()), ("nvidia-dali-cuda120", None))
    package = judge_package(name, version)
    return CheckResult("DALI", f"{package.observation} ({name})", package.status, package.advice)


def check_extras() -> Iterator[CheckResult]:
    """Report the installed packages of the extras, and the extras that are not complete."""
    copy = find_distribution()
    requirements = (copy and copy.requires) or []  # [] if gpupipe is not installed
    packages = {}
    for extra in EXTRAS:
        required = list_requirements(requirements, extra)
        names = [re.split(r"[^\w.-]", requirement)[0] for requirement in required]
        if names:
            packages[extra] = {name: installed_version(name) for name in names}
    yield from judge_extras(packages, install_command)


def judge_extras(
    extras: Mapping[str, Mapping[str, str | None]], install: Callable[[str], str]
) -> Iterator[CheckResult]:
    """Yield a CheckResult for each complete extra, and one for all others, which are no problem.

    Args:
        extras: For each extra in gpupipe's metadata the version of each package that it requires;
            None for a package that is not installed.
        install: Returns the command that installs extras, from their names with commas.
    """
    missing = {}
    for extra, packages in extras.items():
        if None in packages.values():
            names = " and ".join(name for name, version in packages.items() if version is None)
            missing[extra] = f"{extra} ({names}: for {EXTRAS[extra]})"
        else:
            versions = ", ".join(f"{name} {version}" for name, version in packages.items())
            yield CheckResult(f"extra {extra}", versions)
    if missing:
        command = install(",".join(missing))
        advice = f"{', '.join(missing.values())}; leave out those that you do not use: {command}"
        yield CheckResult("missing extras", str(len(missing)), "ok", advice)


def check_extensions() -> Iterator[CheckResult]:
    """Report whether the C++ extensions are built."""
    if not IS_POSIX:
        yield CheckResult("kernels", "none for Windows: libraries do their work", "ok", "")
        return
    kernels, jpeg = find_extension("_kernels"), find_extension("_jpeg")
    is_off, rebuild = os.environ.get(KERNELS_VARIABLE) == "off", rebuild_command()
    yield judge_kernels(kernels and kernels.variants(), is_off, rebuild)
    yield judge_region_decoding(jpeg is not None, is_off, rebuild)
    yield judge_png_decoding(find_extension("_png") is not None, is_off, rebuild)


def judge_kernels(variants: Sequence[str] | None, is_off: bool, rebuild: str) -> CheckResult:
    """Report whether the C++ kernels of `engine: cpu` are built. The engine runs without them, too.

    Args:
        variants: The instruction sets that the kernels can use, the preferred one first; None if
            the kernels are off or not built.
        is_off: Whether GPUPIPE_KERNELS=off.
        rebuild: The command that compiles the extensions again.
    """
    return _judge_extension(
        "kernels",
        "of engine: cpu, in C++",
        variants[0] if variants else "",
        is_off,
        "for a faster engine: cpu: install a C++ compiler and Python's headers "
        f"(apt-get install g++ python3-dev), then {rebuild}",
    )


def judge_region_decoding(is_built: bool, is_off: bool, rebuild: str) -> CheckResult:
    """Report whether `engine: cpu` can decode a region of a JPEG. The engine runs without it, too.

    Args:
        is_built: Whether gpupipe._jpeg can be imported.
        is_off: Whether GPUPIPE_KERNELS=off.
        rebuild: The command that compiles the extensions again.
    """
    return _judge_extension(
        "region decoding",
        "of engine: cpu",
        "libjpeg-turbo" if is_built else "",
        is_off,
        "to decode only the window of a crop: install a C++ compiler, Python's headers and "
        "libjpeg-turbo 2.1 or newer (apt-get install g++ python3-dev libjpeg-dev), then "
        f"{rebuild}",
    )


def judge_png_decoding(is_built: bool, is_off: bool, rebuild: str) -> CheckResult:
    """Report whether `engine: cpu` decodes PNGs in C++. The engine runs without it, too.

    Args:
        is_built: Whether gpupipe._png can be imported.
        is_off: Whether GPUPIPE_KERNELS=off.
        rebuild: The command that compiles the extensions again.
    """
    return _judge_extension(
        "PNG decoding",
        "of engine: cpu, in C++",
        "libpng" if is_built else "",
        is_off,
        "to decode PNGs such as masks without Python: install a C++ compiler, Python's headers and "
        f"libpng 1.6 (apt-get install g++ python3-dev libpng-dev), then {rebuild}",
    )


def _judge_extension(
    subject: str, purpose: str, component: str, is_off: bool, advice: str
) -> CheckResult:
    """Report whether a C++ extension is built.

    `component` is what the extension uses; "" if the extension is off or not built.
    """
    return judge(
        subject,
        f"{purpose}: not built",
        (component, "ok", f"{purpose}, with {component}", ""),
        (is_off, "ok", f"{purpose}: off", "unset GPUPIPE_KERNELS"),
        advice=advice,
    )
