"""Find configs and pipelines by name: the user's own first, then those that ship with gpupipe.

configs/ and pipelines/ of the repository are gpupipe/builtin_configs/ and builtin_pipelines/ where
gpupipe is installed; gpupipe/config/ and gpupipe/pipeline/ are code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from gpupipe.errors import ConfigError, did_you_mean, shown
from gpupipe.runtime.files import expand_user

Kind = Literal["configs", "pipelines"]
SUFFIXES = (".yaml", ".yml", ".json")
"""Of files of the user's: JSON is YAML as well."""
_PACKAGE = Path(__file__).parents[1]


def folder(kind: Kind) -> Path:
    """Return the folder of the shipped files, in the installed package or in a checkout."""
    installed = _PACKAGE / f"builtin_{kind}"
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def names(kind: Kind) -> list[str]:
    """Return the names of the shipped files, without the suffix."""
    return sorted(p.stem for p in folder(kind).glob("*.yaml"))


def locate(kind: Kind, name: str, beside: Path | None = None) -> Path:
    """Find the file that `name` stands for.

    Searches, in this order: a path with the suffix .yaml, .yml or .json, from the working
    directory, then from `beside`; `KIND/NAME.yaml` in the working directory, in `beside` and in its
    parent; the shipped files. So the working directory comes first, as for all paths.

    Args:
        kind: "configs" or "pipelines".
        name: A path or a name.
        beside: The folder of the file that mentions `name`.

    Raises:
        ConfigError: There is no such file. The message suggests the nearest shipped name, or
            lists all of them.
    """
    path = expand_user(name)
    folders = [Path(), beside] if beside else [Path()]
    paths = [base / path for base in folders] if path.suffix in SUFFIXES else []
    folders += [beside.absolute().parent] if beside else []
    paths += [base / kind / f"{name}.yaml" for base in folders] + [folder(kind) / f"{name}.yaml"]
    match = next((p for p in paths if _exists(p, Path.is_file)), None)
    if match is None:
        raise ConfigError.at("", _explain_absence(kind, name, path))
    return match


def _explain_absence(kind: Kind, name: str, path: Path) -> str:
    if name and _exists(path, Path.is_dir):
        rule = f"{shown(name)} is a folder, but a {kind[:-1]} is a YAML file"
        return f"{rule}: to read its images, take one and write data.root={name} after it"
    if name and path.suffix not in SUFFIXES and _exists(path, Path.is_file):
        endings = "its name must end in .yaml, .yml or .json"
        return f"{shown(name)} is no {kind[:-1]}: {endings}"
    suggestion = did_you_mean(path.stem, names(kind))
    return f"no {kind[:-1]} {shown(name)}: it is neither a file nor a name{suggestion}"


def _exists(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except OSError:  # No file can have this name: it may be the text of a whole config.
        return False
