"""The way of load("lfw") through the folders, up to the constructor of the engine.

A reader who follows it opens few folders, and goes from the top down. The ground does not count as
a folder that is entered: its layers know nothing of samples, steps and engines, and are called from
everywhere, as the standard library is.
"""

from __future__ import annotations

import configparser
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import gpupipe
from gpupipe.engines.cpu.engine import CpuEngine

PACKAGE = Path(gpupipe.__file__).parent
FIRST_ABOVE_GROUND = "dataset"
MAX_FOLDERS = 8
MAX_CLIMBS = 2


def read_layers() -> dict[str, int]:
    """Return the layer of each folder and module of the package, the lowest 0, from setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    layers = setup["importlinter:contract:floors"]["layers"].split("\n")
    return {
        name.strip().removeprefix("gpupipe."): number
        for number, layer in enumerate(reversed([layer for layer in layers if layer]))
        for name in layer.split("|")
    }


LAYERS = read_layers()


def top_of(code: CodeType) -> str:
    """Return the folder or module of gpupipe/ that a code is in; "" for all other code."""
    path = Path(code.co_filename)
    is_ours = path.is_relative_to(PACKAGE) and code.co_name != "<module>"
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py") if is_ours else ""


def find_caller(frame: FrameType) -> FrameType | None:
    """Return the nearest frame of gpupipe that led to a frame, such as over pydantic."""
    caller = frame.f_back
    while caller is not None and top_of(caller.f_code) not in LAYERS:
        caller = caller.f_back
    return caller


class Reached(Exception):
    """The engine's constructor is called."""


class Way:
    """What was entered, and from where.

    Attributes:
        folders: The top folders that are entered, with those of the ground.
        climbs: Calls into a folder of a higher layer: the place of the call, and that folder. A
            place counts once, since a longer pipeline takes the same way.
    """

    def __init__(self) -> None:
        self.folders: set[str] = set()
        self.climbs: set[tuple[str, int, str]] = set()

    def follow(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function, as sys.setprofile takes it."""
        if event != "call" or (top := top_of(frame.f_code)) not in LAYERS:
            return
        if frame.f_code is CpuEngine.__init__.__code__:
            raise Reached
        if (PACKAGE / top).is_dir():
            self.folders.add(top)
        caller = find_caller(frame)
        if caller is not None and LAYERS[top_of(caller.f_code)] < LAYERS[top]:
            self.climbs.add((caller.f_code.co_filename, caller.f_lineno, top))


@pytest.fixture
def way(faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """The way of load("lfw"), when all modules are imported and the data is there."""
    (tmp_path / "lfw").symlink_to(faces, target_is_directory=True)
    monkeypatch.setenv("GPUPIPE_DATA", str(tmp_path))
    gpupipe.load("lfw", device="cpu").close()
    way = Way()
    before = sys.getprofile()
    sys.setprofile(way.follow)
    try:
        with pytest.raises(Reached):
            gpupipe.load("lfw", device="cpu")
    finally:
        sys.setprofile(before)
    yield way


def test_load_enters_few_folders(way: Way) -> None:
    ground = {name for name, layer in LAYERS.items() if layer < LAYERS[FIRST_ABOVE_GROUND]}
    entered = way.folders - ground
    assert {"config", "engines", "loading", "sources", "steps"} <= entered, "the profile works"
    assert len(entered) <= MAX_FOLDERS, sorted(entered)
    assert way.folders & ground <= {"runtime", "schema"}


def test_load_goes_down_the_layers(way: Way) -> None:
    assert len(way.climbs) <= MAX_CLIMBS, sorted(way.climbs)
    assert {folder for _, _, folder in way.climbs} <= {"steps"}, "by the contract Step alone"


def test_the_layers_are_those_of_import_linter() -> None:
    assert LAYERS["errors"] == 0 < LAYERS["engines"] < LAYERS["loading"] < LAYERS["cli"]
    assert LAYERS["steps"] == LAYERS["sources"] > LAYERS["pipeline"]
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()} <= {
        *LAYERS
    }
    assert top_of(CpuEngine.__init__.__code__) == "engines"
    assert top_of(read_layers.__code__) == "", "not of the package"
