"""A config goes from load() to the engine through few folders, down, as CONTRIBUTING.md shows."""

import configparser
import re
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import gpupipe
from gpupipe.engines import registry
from gpupipe.schema.validation_errors import build_model

PACKAGE = Path(gpupipe.__file__).parent
ROOT = PACKAGE.parent
CONTRACTS = ("steps", "engines")
"""Code in lower folders calls these through contracts: Step, and the primitives of a back end."""
GROUND = "dataset"
"""The lowest layer that knows of samples, steps and engines. Those below it are called from
everywhere, as the standard library is: to follow a config nobody has to enter them.
"""
MAX_FOLDERS = 8
"""From GROUND up; of all folders two more, runtime and schema."""
MAX_CLIMBS = 2
"""Of all folders and modules: the places from which a call returns to a higher layer."""


def folders_of_the_map() -> list[str]:
    """The folders in the table of CONTRIBUTING.md, whose modules must exist."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("### From load() to the engine")[2].partition("\n## ")[0]
    modules = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", section, re.M)
    assert [m for m in modules if not (PACKAGE / m).is_file()] == []
    return [Path(m).parts[0].removesuffix(".py") for m in modules]


def read_layers() -> dict[str, int]:
    """The layer of each folder and module of gpupipe, 0 at the bottom, as setup.cfg has them."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    rows = [r for r in setup["importlinter:contract:floors"]["layers"].split("\n") if r]
    return {
        name.strip().removeprefix("gpupipe."): number
        for number, row in enumerate(reversed(rows))
        for name in row.split("|")
    }


LAYERS = read_layers()


def top_of(code: CodeType) -> str:
    """The folder below gpupipe/ of a code, or its module there; "" for code of other packages."""
    path = Path(code.co_filename)
    is_ours = path.is_relative_to(PACKAGE) and code.co_name != "<module>"
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py") if is_ours else ""
    return name if name in LAYERS else ""


class Arrived(Exception):
    """The constructor of the engine is called."""


@dataclass
class Way:
    """The way of a config up to the constructor of an engine.

    Attributes:
        goal: The code of that constructor.
        visited: The folders and modules that were entered, in the order of their first calls.
        climbs: The calls from a layer into a higher one: the place of the call, and the folder that
            it enters. A place counts once: a longer pipeline takes the same way.
    """

    goal: CodeType
    visited: list[str] = field(default_factory=list)
    climbs: set[tuple[str, int, str]] = field(default_factory=set)

    def look(self, frame: FrameType, event: str, argument: object) -> None:
        """A profile function, as sys.setprofile takes it."""
        here = top_of(frame.f_code)
        if event != "call" or not here:
            return
        if frame.f_code is self.goal:
            raise Arrived
        if here not in self.visited:
            self.visited.append(here)
        caller = frame.f_back
        while caller is not None and (
            not top_of(caller.f_code) or caller.f_code is build_model.__code__
        ):  # pydantic's, and the function that words pydantic's errors
            caller = caller.f_back
        if caller is not None and LAYERS[top_of(caller.f_code)] < LAYERS[here]:
            self.climbs.add((caller.f_code.co_filename, caller.f_lineno, here))


def follow(config: Any, engine: str) -> Way:
    """Return the way of a config when all modules are imported."""
    gpupipe.load(config, device="cpu", engine=engine).close()
    way = Way(registry.find(engine).__init__.__code__)  # type: ignore[misc]
    sys.setprofile(way.look)
    try:
        with pytest.raises(Arrived):
            gpupipe.load(config, device="cpu", engine=engine)
    finally:
        sys.setprofile(None)
    return way


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
def test_a_config_goes_down_from_load_to_the_engine(faces: Path, engine: str) -> None:
    data = {"source": "folder", "root": faces}
    way = follow({"data": data, "pipeline": "affine", "loader": {"batch_size": 4}}, engine)
    assert {here for *_, here in way.climbs} <= {*CONTRACTS}, "by a contract alone"
    on_the_map = folders_of_the_map()
    shown = list(dict.fromkeys(on_the_map))
    assert [name for name in way.visited if name in shown] == shown, "in the order of the map"
    assert sum(a != b for a, b in pairwise(on_the_map)) <= 8, "changes of folder"


def test_load_goes_through_few_folders(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lfw").symlink_to(faces, target_is_directory=True)
    monkeypatch.setenv("GPUPIPE_DATA", str(tmp_path))
    way = follow("lfw", "cpu")
    folders = {name for name in way.visited if (PACKAGE / name).is_dir()}
    entered = {name for name in folders if LAYERS[name] >= LAYERS[GROUND]}
    assert {"config", "engines", "loading", "sources", "steps"} <= entered, "the profile sees calls"
    assert len(entered) <= MAX_FOLDERS, sorted(entered)
    assert folders - entered == {"runtime", "schema"}
    assert len(way.climbs) <= MAX_CLIMBS, sorted(way.climbs)


def test_the_layers_are_those_of_import_linter() -> None:
    assert LAYERS["errors"] == 0 < LAYERS["engines"] < LAYERS["loading"] < LAYERS["cli"]
    assert LAYERS["steps"] == LAYERS["sources"] > LAYERS["pipeline"]
    names = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert names <= {*LAYERS}
