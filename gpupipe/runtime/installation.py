"""How this copy of gpupipe was installed, and the commands that install it again.

The package index has another project under the name gpupipe, so no command names that.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DISTRIBUTION = "gpupipe-loader"
"""The name in the metadata, and in the package index; the module and the command are gpupipe."""

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_A_CLONE = "(in a clone of gpupipe)"


def install_command(extra: str) -> str:
    """Return the command that installs what an extra needs, from where this copy came.

    Args:
        extra: The name of the extra in setup.cfg, or several with commas.

    Returns:
        For example "pip install -e '/home/me/gpupipe[cpu]'". If the folder or the wheel was
        removed, the command names the packages of the extra.
    """
    copy = find_distribution()
    sources = _list_sources(copy, f"[{extra}]") or _list_requirements(copy, extra)
    if not sources:
        return f"pip install '.[{extra}]' {_IN_A_CLONE}"
    return shlex.join(["pip", "install", *sources])


def rebuild_command() -> str:
    """Return the command that compiles the extensions of this copy again.

    A wheel has no sources, and pip keeps what it built from a repository in its cache.
    """
    command = ["pip", "install", "--force-reinstall", "--no-deps", "--no-cache-dir"]
    sources = _list_sources(find_distribution(), "")
    if not sources or sources[-1].endswith(".whl"):
        return f"{shlex.join(command)} . {_IN_A_CLONE}"
    by_name = ["--no-binary", DISTRIBUTION] if sources == [DISTRIBUTION] else []
    return shlex.join([*command, *by_name, *sources])


def own_version() -> str:
    """Return the version of this copy, installed or not."""
    return str(importlib.import_module("gpupipe").__version__)


def installed_version(names: Iterable[str]) -> str | None:
    """Return the version of the first of these packages that is installed, or None."""
    return next((copy.version for name in names for copy in distributions(name=name)), None)


def parse_release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: "2.15.0+cu132" is (2, 15, 0)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()


def find_distribution() -> Distribution | None:
    """Return the metadata of the copy that is imported; None if that is not installed.

    Other copies may be installed too: Python imports the first on its path.
    """
    copies = distributions(name=DISTRIBUTION)
    return next((copy for copy in copies if _find_package(copy) == _PACKAGE), None)


def _find_package(copy: Distribution) -> Path:
    origin = _read_origin(copy)
    is_editable = origin.get("dir_info", {}).get("editable")
    root = _local_path(origin["url"]) if is_editable else Path(str(copy.locate_file("")))
    return (root / "gpupipe").resolve()


def _read_origin(copy: Distribution | None) -> dict[str, Any]:
    """Return what PEP 610 has installers record of an installation that is not from an index."""
    origin: dict[str, Any] = json.loads((copy and copy.read_text("direct_url.json")) or "{}")
    return origin


def _list_sources(copy: Distribution | None, extras: str) -> list[str]:
    """Return pip's arguments for where a copy came from; none if that is not there any more."""
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


def _list_requirements(copy: Distribution | None, extra: str) -> list[str]:
    """Return the packages of extras, with their versions: "pyzmq>=26"."""
    names = "|".join(map(re.escape, extra.split(",")))
    of_extra = re.compile(rf"extra == ['\"]({names})['\"]")
    lines = (copy and copy.requires) or []
    return [line.partition(";")[0].strip() for line in lines if of_extra.search(line)]
