"""Find configs and pipelines by name: the user's own first, then those that ship with gpupipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from gpupipe.errors import ConfigError, Problem, did_you_mean, shown

Kind = Literal["configs", "pipelines"]
_PACKAGE = Path(__file__).parents[1]


def folder(kind: Kind) -> Path:
    """Return the folder of the shipped files, in the installed package or in a checkout."""
    installed = _PACKAGE / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def names(kind: Kind) -> list[str]:
    """Return the names of the shipped files, without the suffix."""
    return sorted(p.stem for p in folder(kind).glob("*.yaml"))


def locate(kind: Kind, name: str, beside: Path | None = None) -> Path:
    """Find the file that `name` stands for.

    Searches, in this order: a path with the suffix .yaml or .yml; `KIND/NAME.yaml` in the working
    directory, in `beside` and in its parent; the shipped files.

    Args:
        kind: "configs" or "pipelines".
        name: A path or a name.
        beside: The folder of the file that mentions `name`. Relative paths start there first.

    Raises:
        ConfigError: There is no such file. The message suggests the nearest shipped name, or
            lists all of them.
    """
    around = [Path()] + ([beside, beside.absolute().parent] if beside else [])
    # Path.expanduser raises if there is no such user.
    path = Path(os.path.expanduser(name))  # noqa: PTH111
    paths = (
        [base / path for base in ([beside] if beside else []) + [Path()]]
        if path.suffix in (".yaml", ".yml")
        else []
    )
    paths += [base / kind / f"{name}.yaml" for base in around] + [folder(kind) / f"{name}.yaml"]
    match = next((p for p in paths if _is_file(p)), None)
    if match is None:
        raise ConfigError(
            [
                Problem(
                    "",
                    f"no {kind[:-1]} {shown(name)}: it is neither a file nor a "
                    f"name{did_you_mean(path.stem, names(kind))}",
                )
            ]
        )
    return match


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # No file can have this name: it may be the text of a whole config.
        return False
