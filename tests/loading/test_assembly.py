"""What a loader is made of, and connecting to servers."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.batch_stage.mixer import BatchMixer
from gpupipe.dataset.population import Population
from gpupipe.engines import registry
from gpupipe.engines.base import Engine
from gpupipe.engines.cpu.engine import CpuEngine
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.engines.remote.engine import RemoteEngine
from gpupipe.errors import ConfigError, EngineError
from gpupipe.loading.assembly import Connects, HoldsFiles, assemble, connect, resolve
from gpupipe.sampling.sampler import Sampler
from gpupipe.sources.folder import Folder
from helpers.served import serving

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
        assemble(replace(resolve(config), engine=engine), config.source.index())
    assert [population.is_closed for population in populations] == [True]


@pytest.mark.parametrize("engine", [CpuEngine, DaliEngine])
def test_a_population_unmaps_the_files_that_the_engine_holds(
    faces: Path, populations: list[Watched], monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    unmapped: list[set[int]] = []
    monkeypatch.setattr(DaliEngine, "unmap_files", lambda self, files: unmapped.append(files))
    config = configs.read(config_of(faces), device="cpu")
    parts = assemble(replace(resolve(config), engine=engine), config.source.index())
    populations[0].unmap_files({1, 2})
    assert unmapped == ([{1, 2}] if engine is DaliEngine else [])
    assert isinstance(parts.engine, HoldsFiles) == (engine is DaliEngine)
    parts.engine.close()


def test_an_engine_connects_or_reads_the_data() -> None:
    engines = [registry.find(name) for name in ("cpu", "dali", "dataloader", "ray", "remote")]
    for engine in engines:
        assert isinstance(engine, Connects) != issubclass(engine, Engine), engine.name


def test_an_engine_that_reads_the_data_has_no_server() -> None:
    with pytest.raises(EngineError, match="engine cpu reads the data itself, and has no server"):
        connect(registry.find("cpu"), configs.read(config_of(Path("/x"))).loader)


def test_where_data_is_read_no_engine_connects() -> None:
    with pytest.raises(EngineError, match="engine remote reads no data here"):
        registry.find_reader("remote")


def test_the_parts_of_a_loader_are_those_of_the_servers(faces: Path) -> None:
    with serving(config_of(faces), {"batch_size": 3, "seed": 4, "device": "cpu"}) as server:
        remote = {"engine": "remote", "server": server.address, "device": "cpu", "seed": 9}
        parts = connect(RemoteEngine, configs.read(config_of(faces), **remote).loader)
        try:
            assert (parts.sampler.batch_size, parts.config.loader.seed) == (3, 4)
            assert len(parts.index) == parts.sampler.count
            assert (parts.engine.name, parts.population) == ("remote", None)
            assert parts.engine.traits.parallelism_with_unit == "1 server"
        finally:
            parts.engine.close()


def test_labels_that_cannot_be_mixed_are_refused(faces: Path) -> None:
    config = config_of(faces, pipeline=FLOATS, batch=["mixup"])
    config["data"] = {**config["data"], "label": None}
    with pytest.raises(ConfigError, match="the data has none"):
        gpupipe.load(config, device="cpu")
