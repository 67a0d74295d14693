"""Connecting in place of reading data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.engines import registry
from gpupipe.engines.base import Engine
from gpupipe.engines.remote.engine import RemoteEngine
from gpupipe.errors import ConfigError, EngineError
from gpupipe.loading.connector import Connects, connect
from helpers.served import serving

FLOATS = ["decode", {"resize": {"size": [8, 8]}}, {"to_dtype": {"dtype": "float32"}}]


def config_of(root: Path, **more: Any) -> dict[str, Any]:
    return {"data": {"source": "folder", "root": str(root)}, "pipeline": ["decode"]} | more


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


def test_labels_that_cannot_be_mixed_are_refused(faces: Path, tmp_path: Path) -> None:
    unlabelled = tmp_path / "all"
    (unlabelled / "0").mkdir(parents=True)
    for n, path in enumerate(sorted(faces.glob("*/*.jpg"))[:4]):
        (unlabelled / "0" / f"{n}.jpg").write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="the data has none"):
        gpupipe.load(config_of(unlabelled, pipeline=FLOATS, batch=["mixup"]), device="cpu")
