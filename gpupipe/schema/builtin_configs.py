"""Where configs and pipelines are found: the user's own first, then those that ship with
gpupipe.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from gpupipe.errors import ConfigError, Problem, did_you_mean, shown

Kind = Literal["configs", "pipelines"]
_PACKAGE = Path(__file__).parents[1]


def folder(kind: Kind) -> Path:
    """The folder of the shipped files: inside the installed package, or beside it in a checkout."""
    inside = _PACKAGE / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def names(kind: Kind) -> list[str]:
    """The names of the shipped files."""
    return sorted(p.stem for p in folder(kind).glob("*.yaml"))


def locate(kind: Kind, name: str, beside: Path | None = None) -> Path:
    """The file that `name` means: a path to one, `KIND/NAME.yaml` here or next to the folder
    `beside`, or a shipped name.

    Raises ConfigError, which lists what is known.
    """
    around = [Path()] + ([beside, beside.absolute().parent] if beside else [])
    # pathlib's raises where there is no such user
    asked = Path(os.path.expanduser(name))  # noqa: PTH111
    paths = (
        [base / asked for base in ([beside] if beside else []) + [Path()]]
        if asked.suffix in (".yaml", ".yml")
        else []
    )
    paths += [base / kind / f"{name}.yaml" for base in around] + [folder(kind) / f"{name}.yaml"]
    found = next((p for p in paths if _is_file(p)), None)
    if found is None:
        raise ConfigError(
            [
                Problem(
                    "",
                    f"no {kind[:-1]} {shown(name)}: it is neither a file nor a "
                    f"name{did_you_mean(asked.stem, names(kind))}",
                )
            ]
        )
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have, such as the text of a whole config
        return False
