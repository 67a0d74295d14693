"""Finds installed packages and the compiled extensions; returns commands that install missing ones.

The package index has another project under the name gpupipe, so the commands never use that name.

The extensions `gpupipe._kernels`, `_jpeg` and `_png` are optional. A C++ compiler builds them at
installation; `_jpeg` also needs libjpeg-turbo, and `_png` libpng. The environment variable
GPUPIPE_KERNELS switches all: `off` runs the libraries' kernels instead, `on` raises EngineError
where an extension was not built. `compute_crc32s` works with or without the extensions.
"""

import importlib
import json
import os
import re
import shlex
import sys
import warnings
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from gpupipe.errors import EngineError, GpupipeError

DISTRIBUTION = "gpupipe-loader"
"""The name in the metadata, and in the package index; the module and the command are gpupipe."""
KERNELS_VARIABLE = "GPUPIPE_KERNELS"
_NEEDS = {
    "_kernels": "a C++ compiler",
    "_jpeg": "a C++ compiler and libjpeg-turbo 2.1 or newer with its headers",
    "_png": "a C++ compiler and libpng 1.6 with its headers",
}
_ABI = 24
"""The version of the extensions' interface that this Python code calls: kAbi in native/stage.h."""
_PACKAGE = Path(__file__).resolve().parents[1]
_IN_A_CLONE = "(in a clone of gpupipe)"


def install_command(extra: str) -> str:
    """Return the command that installs gpupipe with an extra, from the source of this copy.

    Args:
        extra: The name of the extra in setup.cfg, or several with commas.

    Returns:
        For example "pip install -e '/home/me/gpupipe[cpu]'". If the folder or the wheel was
        removed, the command names the packages of the extra.
    """
    copy = find_distribution()
    requirements = (copy and copy.requires) or []
    sources = _list_sources(copy, f"[{extra}]") or list_requirements(requirements, extra)
    if not sources:
        return f"pip install '.[{extra}]' {_IN_A_CLONE}"
    return shlex.join(["pip", "install", *sources])


def is_in_cache() -> bool:
    """Return whether this environment lies in a cache, as uvx makes it: it may be gone tomorrow."""
    return any((folder / "CACHEDIR.TAG").is_file() for folder in Path(sys.prefix).parents)


def rebuild_command() -> str:
    """Return the command that compiles the extensions of this copy again.

    For a copy from a wheel, which has no C++ sources, the command needs a clone. pip's cache is
    disabled, because it may hold an older build.
    """
    command = ["pip", "install", "--force-reinstall", "--no-deps", "--no-cache-dir"]
    sources = _list_sources(find_distribution(), "")
    if not sources or sources[-1].endswith(".whl"):
        return f"{shlex.join(command)} . {_IN_A_CLONE}"
    by_name = ["--no-binary", DISTRIBUTION] if sources == [DISTRIBUTION] else []
    return shlex.join([*command, *by_name, *sources])


def own_version() -> str:
    """Return the version of the imported copy of gpupipe, whether it is installed or not."""
    return str(importlib.import_module("gpupipe").__version__)


def installed_version(*names: str) -> str | None:
    """Return the version of the first package in `names` that is installed, or None."""
    return next((copy.version for name in names for copy in distributions(name=name)), None)


def parse_release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: "2.15.0+cu132" is (2, 15, 0)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()


def find_distribution() -> Distribution | None:
    """Return the metadata of the imported copy of gpupipe; None if that copy is not installed.

    Several copies may be installed: Python imports the first on its path.
    """
    copies = distributions(name=DISTRIBUTION)
    return next((copy for copy in copies if _find_package(copy) == _PACKAGE), None)


def _find_package(copy: Distribution) -> Path:
    origin = _read_origin(copy)
    is_editable = origin.get("dir_info", {}).get("editable")
    root = _local_path(origin["url"]) if is_editable else Path(str(copy.locate_file("")))
    return (root / "gpupipe").resolve()


def _read_origin(copy: Distribution | None) -> dict[str, Any]:
    """Return where pip installed a copy from: the content of direct_url.json (PEP 610), or {}."""
    origin: dict[str, Any] = json.loads((copy and copy.read_text("direct_url.json")) or "{}")
    return origin


def _list_sources(copy: Distribution | None, extras: str) -> list[str]:
    """Return pip's arguments that name a copy's source; [] if the source no longer exists."""
    origin = _read_origin(copy)
    if origin:
        return _list_url(origin, extras)
    if (_PACKAGE.parent / "setup.cfg").is_file():  # on the path; an .egg-info may be beside it
        return ["-e", f"{_PACKAGE.parent}{extras}"]
    return [f"{DISTRIBUTION}{extras}"] if copy else []


def _list_url(origin: dict[str, Any], extras: str) -> list[str]:
    url, vcs, part = origin["url"], origin.get("vcs_info"), origin.get("subdirectory")
    if url.startswith("file:") and not vcs and not part:
        path = _local_path(url)
        editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
        return [*editable, f"{path}{extras}"] if path.exists() else []
    if vcs:
        url = f"{vcs['vcs']}+{url.replace(' ', '%20')}@{vcs['commit_id']}"  # pip decodes spaces
    return [f"{DISTRIBUTION}{extras} @ {url}" + (f"#subdirectory={part}" if part else "")]


def _local_path(url: str) -> Path:
    from urllib.request import url2pathname  # imports http.client, for what only messages need

    return Path(url2pathname(urlsplit(url).path))


def list_requirements(requirements: Iterable[str], extra: str) -> list[str]:
    """Return the packages of extras, with their versions: "pyzmq>=26".

    Args:
        requirements: All requirements of gpupipe, such as "pyzmq>=26; extra == 'server'".
        extra: The name of the extra, or several with commas.
    """
    names = "|".join(map(re.escape, extra.split(",")))
    of_extra = re.compile(rf"extra == ['\"]({names})['\"]")
    return [line.partition(";")[0].strip() for line in requirements if of_extra.search(line)]


def require_extra(
    extra: str, modules: tuple[str, ...], purpose: str, error: type[GpupipeError] = GpupipeError
) -> None:
    """Raise an error with the install command if a package of an extra is missing.

    Args:
        extra: The name of the extra in setup.cfg.
        modules: The modules that the packages of the extra provide.
        purpose: The feature that needs these modules. The message begins with this text.
        error: The class of the error.
    """
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        raise error(
            f"{purpose} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: run {install_command(extra)}"
        )


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


_OLDEST = 5
"""The first major version of OpenCV whose affine warp is within one level of torchvision's."""


def has_opencv() -> bool:
    """Return whether a recent enough OpenCV is installed; warn about an older one."""
    try:
        import cv2
    except ModuleNotFoundError as e:
        if e.name != "cv2":
            raise
        return False
    version: str = cv2.__version__
    if int(version.partition(".")[0]) >= _OLDEST:
        return True
    warnings.warn(
        f"the engine cpu does not use OpenCV {version}, whose warps are less exact than those of "
        f"OpenCV {_OLDEST}: torchvision does its work, more slowly. Run {install_command('cpu')}",
        stacklevel=2,
    )
    return False


def import_torchvision() -> None:
    """Import torchvision's functions before the threads of an engine call them.

    Raises:
        EngineError: The import fails: the torchvision that is installed belongs to another torch.
    """
    try:
        import torchvision.transforms.v2.functional  # noqa: F401
    except (ImportError, OSError, RuntimeError, AttributeError) as e:
        raise EngineError(
            f"torchvision cannot be imported ({e}): it may belong to another version of torch. "
            "Install the two together: pip install --force-reinstall torch torchvision"
        ) from e


def find_extension(name: Literal["_kernels", "_jpeg", "_png"] = "_kernels") -> Any:
    """Return the compiled module `gpupipe.NAME`; None if off, not built, or of another version.

    Raises:
        EngineError: GPUPIPE_KERNELS is `on` and the extension is missing or of another version, or
            the variable is neither `on` nor `off`.
    """
    setting = os.environ.get(KERNELS_VARIABLE, "")
    if setting not in ("", "on", "off"):
        raise EngineError(
            f"{KERNELS_VARIABLE}={setting} is neither on nor off: unset it, or write one"
        )
    if setting == "off":
        return None
    try:
        extension = importlib.import_module(f"gpupipe.{name}")
    except ImportError as e:
        if setting == "on":
            raise EngineError(
                f"{KERNELS_VARIABLE}=on, but gpupipe.{name} cannot be imported: {e}; install "
                f"{_NEEDS[name]}, then run {rebuild_command()}, or unset the variable"
            ) from e
        return None
    if getattr(extension, "ABI", None) == _ABI:
        return extension
    other = f"gpupipe.{name} was built for another version of gpupipe: run {rebuild_command()}"
    if setting == "on":
        raise EngineError(f"{KERNELS_VARIABLE}=on, but {other}, or unset the variable")
    # The place of the warning is this line, not the many that ask: so it is shown once.
    warnings.warn(f"{other}; until then it is not used", stacklevel=1)
    return None


def compute_crc32s(buffers: Sequence[Any]) -> list[int]:
    """Return zlib.crc32 of each buffer, computed without the GIL if gpupipe._kernels is in use."""
    extension = _find_kernels()
    if extension is not None:
        return extension.compute_crc32s(buffers)  # type: ignore[no-any-return]
    return [zlib.crc32(buffer) for buffer in buffers]


@cache
def _find_kernels() -> Any:
    """Return the module gpupipe._kernels, or None. Cached, since each read of a batch needs it."""
    return find_extension()
