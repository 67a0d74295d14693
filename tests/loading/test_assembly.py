"""The parts of a loader are created once, in an order in which nothing starts that will not run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.batch_stage.mixer import BatchMixer
from gpupipe.dataset.population import Population
from gpupipe.engines import registry
from gpupipe.engines.cpu.engine import CpuEngine
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.errors import ConfigError, EngineError
from gpupipe.loading.assembly import HoldsFiles, assemble
from gpupipe.sampling.sampler import Sampler
from gpupipe.sources.folder import Folder

FLOATS = ["decode", {"resize": {"size": [8, 8]}}, {"to_dtype": {"dtype": "float32"}}]


def config_of(root: Path, **more: Any) -> dict[str, Any]:
    return {"data": {"source": "folder", "root": str(root)}, "pipeline": ["decode"]} | more


@pytest.mark.parametrize("batch", [[], ["mixup"]], ids=str)
def test_a_load_resolves_auto_once_and_makes_one_sampler_and_one_mixer(
    faces: Path, monkeypatch: pytest.MonkeyPatch, batch: list[str]
) -> None:
    made: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counting(*args: Any, **options: Any) -> Any:
            made[getattr(owner, "__name__", "")] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, counting)

    count(Sampler, "__init__")
    count(BatchMixer, "__init__")
    count(registry, "choose")
    written = config_of(faces, pipeline=FLOATS, batch=batch)
    with gpupipe.load(written, device="cpu", batch_size=4) as loader:
        next(iter(loader))
    assert made == {"Sampler": 1, "BatchMixer": 1, "gpupipe.engines.registry": 1}


class Watched(Population):
    """All samples, until it is closed."""

    def __init__(self, unmap_files: Any) -> None:
        self.unmap_files, self.is_closed = unmap_files, False

    def close(self) -> None:
        self.is_closed = True


for _name in Population.__abstractmethods__ - {"close"}:
    setattr(Watched, _name, None)
Watched.__abstractmethods__ = frozenset()


class Refusing(CpuEngine):
    name = "refusing"

    def __init__(self, job: Any, device_id: int | None) -> None:
        raise EngineError("not this one")


@pytest.fixture
def populations(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    made: list[Watched] = []

    def population(self: Folder, *args: Any) -> Watched:
        made.append(Watched(args[-1]))
        return made[-1]

    monkeypatch.setattr(Folder, "population", population, raising=False)
    return made


@pytest.mark.parametrize(
    ("engine", "changes", "error"),
    [
        (Refusing, {}, EngineError),
        (CpuEngine, {"shard": {"rank": 0, "world_size": 10**6}}, ConfigError),
    ],
    ids=["engine", "sampler"],
)
def test_what_cannot_be_made_leaves_no_population(
    faces: Path, populations: list[Watched], engine: Any, changes: Any, error: type[Exception]
) -> None:
    config = configs.read(config_of(faces), device="cpu", **changes)
    with pytest.raises(error):
        assemble(config, config.source.index(), engine)
    assert [population.is_closed for population in populations] == [True]


@pytest.mark.parametrize("engine", [CpuEngine, DaliEngine])
def test_a_population_unmaps_the_files_that_the_engine_holds(
    faces: Path, populations: list[Watched], monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    unmapped: list[set[int]] = []
    monkeypatch.setattr(DaliEngine, "unmap_files", lambda self, files: unmapped.append(files))
    config = configs.read(config_of(faces), device="cpu")
    parts = assemble(config, config.source.index(), engine)
    populations[0].unmap_files({1, 2})
    assert unmapped == ([{1, 2}] if engine is DaliEngine else [])
    assert isinstance(parts.engine, HoldsFiles) == (engine is DaliEngine)
    parts.engine.close()
