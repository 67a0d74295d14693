"""A config goes from load() to the engine as CONTRIBUTING.md shows."""

from __future__ import annotations

import configparser
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gpupipe

PACKAGE = Path(gpupipe.__file__).parent
ROOT = PACKAGE.parent
CONTRACTS = ("steps", "engines")
"""Code in lower folders calls these through contracts: Step, and the primitives of a back end."""


def folders_of_the_map() -> list[str]:
    """The folders in the table of CONTRIBUTING.md, whose modules must exist."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("### From load() to the engine")[2].partition("\n## ")[0]
    modules = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", section, re.M)
    assert [m for m in modules if not (PACKAGE / m).is_file()] == []
    return [folder(PACKAGE / m) for m in modules]


def layers() -> dict[str, int]:
    """The layer of each folder, 0 at the top, as setup.cfg has them."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    rows = setup["importlinter:contract:floors"]["layers"].split("\n")
    return {
        name.strip().removeprefix("gpupipe."): number
        for number, row in enumerate(rows)
        for name in row.split("|")
    }


def folder(file: str | Path) -> str:
    """The folder below gpupipe/ of a file, or its name if it lies in gpupipe/ itself."""
    return Path(file).relative_to(PACKAGE).parts[0].removesuffix(".py")


def callers(frame: FrameType | None) -> Iterator[str]:
    """The folders of a frame's callers in gpupipe, the nearest first."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            yield folder(frame.f_code.co_filename)
        frame = frame.f_back


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
def test_a_config_goes_down_from_load_to_the_engine(faces: Path, engine: str) -> None:
    config: dict[str, Any] = {
        "data": {"source": "folder", "root": faces},
        "pipeline": "affine",
        "loader": {"engine": engine, "device": "cpu", "batch_size": 4},
    }
    gpupipe.load(config).close()  # imports all modules
    layer, visited, upward = layers(), [], set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        here = folder(frame.f_code.co_filename)
        caller = next(callers(frame.f_back), here)
        if here not in visited:
            visited.append(here)
        if layer.get(here, 0) < layer.get(caller, 0) and here not in CONTRACTS:
            upward.add((caller, here, frame.f_code.co_name))

    sys.setprofile(look)
    try:
        loader = gpupipe.load(config)
    finally:
        sys.setprofile(None)
    loader.close()
    assert upward == set(), "calls go down, but for calls through a contract"
    way = folders_of_the_map()
    shown = list(dict.fromkeys(way))
    assert [name for name in visited if name in shown] == shown, "in the order of the map"
    assert sum(a != b for a, b in pairwise(way)) <= 8, "changes of folder"
