"""Which settings of `loader:` an engine uses, and how it is told that another has no effect."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpupipe
from gpupipe import config as configs
from gpupipe.config import LoaderConfig
from gpupipe.engines.cpu.engine import CpuEngine
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.engines.dataloader.engine import DataLoaderEngine
from gpupipe.engines.ray.engine import RayEngine
from gpupipe.engines.remote.engine import RemoteEngine
from gpupipe.loading.assembly import resolve
from gpupipe.loading.ignored_settings import LOADER_SETTINGS, list_doubts, list_ignored_settings
from gpupipe.schema import yaml_files
from helpers import forked_python
from helpers.served import serving

ENGINES = [CpuEngine, DaliEngine, DataLoaderEngine, RayEngine, RemoteEngine]
SERVER = {"engine": "remote", "server": "tcp://127.0.0.1:5557"}


def config(root: Path | str = "/x") -> dict[str, Any]:
    return {"data": {"source": "folder", "root": str(root)}, "pipeline": ["decode"]}


def ignored(**settings: Any) -> list[str]:
    checked = configs.read(config(), **settings)
    return list_ignored_settings(checked, resolve(checked).engine)


def test_every_setting_is_one_of_the_loader_or_of_an_engine() -> None:
    assert LOADER_SETTINGS.union(*(e.settings for e in ENGINES)) == set(LoaderConfig.model_fields)
    assert not any(LOADER_SETTINGS & e.settings for e in ENGINES)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "dali", "workers": 4}, "loader.workers=4 has no effect: engine dali does"),
        ({"engine": "dali", "decoder": "pil"}, "loader.decoder='pil' has no effect: engine dali"),
        ({"engine": "dali", "device": "cpu", "hw_decoder_load": 0.5}, "no effect: device is cpu"),
        ({"engine": "dali", "hwm": 3}, "loader.hwm=3 has no effect: engine dali does not use it"),
        ({"engine": "auto", "device": "cpu", "workers": 4}, "engine cpu does not use it"),
        ({"engine": "dataloader", "hw_decoder_load": 0.5}, "engine dataloader does not use it"),
        ({"engine": "dataloader", "workers": 2, "threads": 4}, "threads=4 has no effect: workers"),
        ({"engine": "dataloader", "workers": 0, "prefetch": 4}, "no effect: workers is 0"),
        ({"engine": "dataloader", "device": "cpu", "pin_memory": False}, "pin_memory=false has no"),
        ({**SERVER, "threads": 4}, "loader.threads=4 has no effect: engine remote does not use"),
    ],
    ids=str,
)
def test_what_was_set_and_is_not_used_is_told(settings: dict[str, Any], said: str) -> None:
    (line,) = ignored(**settings)
    assert said in line


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "dali", "threads": 4, "prefetch": 3, "hw_decoder_load": 0.5, "max_bad": 0.5},
        {"engine": "dali", "workers": "auto", "decoder": "auto"},
        {"engine": "dataloader", "threads": 4, "decoder": "pil", "prefetch": 3},
        {"engine": "dataloader", "workers": 3, "pin_memory": False},
        {**SERVER, "hwm": 3, "batch_size": 7, "format": "tuple", "device": "cpu"},
        {"device": "cpu", "shard": {"rank": 1, "world_size": 2}, "ids": True},
    ],
    ids=str,
)
def test_what_is_used_or_says_what_is_so_anyway_is_not(settings: dict[str, Any]) -> None:
    assert ignored(**settings) == []


@pytest.mark.parametrize("name", yaml_files.names("configs"))
@pytest.mark.parametrize("changes", [{}, {"engine": "dataloader"}, SERVER], ids=str)
def test_shipped_configs_are_quiet(name: str, changes: dict[str, Any]) -> None:
    checked = configs.read(name, **changes)
    assert list_ignored_settings(checked, resolve(checked).engine) == []


def test_load_tells_it_once(faces: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        gpupipe.load(config(faces), engine="dali", device="cpu", workers=7).close()
    (told,) = [r.getMessage() for r in caplog.records if r.name == "gpupipe"]
    assert told == "loader.workers=7 has no effect: engine dali does not use it"
    assert {r.levelno for r in caplog.records} == {logging.WARNING}


NORMALIZE = {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}


def test_numbers_for_scaled_pixels_on_unscaled_ones_are_told_once(
    tmp_path: Path, faces: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The images would be of -2 to 1,200: `to_dtype` without `scale` keeps 0 to 255."""
    path = tmp_path / "c.yaml"
    own = config(faces) | {"pipeline": ["decode", {"to_dtype": {"dtype": "float32"}}, NORMALIZE]}
    path.write_text(yaml.safe_dump(own))
    for _ in range(2):
        gpupipe.load(path, device="cpu").close()
    (told,) = [r.getMessage() for r in caplog.records if r.name == "gpupipe"]
    assert told.startswith(f"{path}:")
    assert "normalize: mean [0.485, 0.456, 0.406] is for pixels of 0 to 1" in told
    assert "write 'to_dtype: {dtype: float32, scale: true}' before it" in told


@pytest.mark.parametrize(
    "pipeline",
    [
        ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}, NORMALIZE],
        [
            "decode",
            {"to_dtype": {"dtype": "float32"}},
            {"normalize": {"mean": [124, 116, 104], "std": [58, 57, 57]}},
        ],
    ],
)
def test_numbers_that_fit_the_pixels_are_no_doubt(pipeline: list[Any]) -> None:
    assert list_doubts(configs.read(config() | {"pipeline": pipeline})) == []


def test_what_is_the_servers_to_say_is_told(faces: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = config(faces) | {"loader": {"batch_size": 9, "seed": 3, "shuffle": True}}
    options = {"engine": "dataloader", "workers": 0, "device": "cpu"}
    with serving(own, options | {"seed": 4}) as server:
        remote = {"engine": "remote", "server": server.address, "device": "cpu"}
        gpupipe.load(own, **remote).close()
    told = [r.getMessage() for r in caplog.records if r.name == "gpupipe"]
    assert told == ["loader.seed=3 has no effect: the server's is 4"]


def test_check_tells_it(faces: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config(faces)))
    command = ["-m", "gpupipe", "check", "c.yaml", "engine=dali", "workers=3"]
    done = forked_python.run(command, cwd=tmp_path, check=True)
    assert done.stdout.count("loader.workers=3 has no effect: engine dali does not use it") == 1
    remote = [*command[:-2], "engine=remote", "server=tcp://127.0.0.1:5557", "threads=3"]
    done = forked_python.run(remote, cwd=tmp_path, check=True)
    assert "loader.threads=3 has no effect: engine remote does not use it" in done.stdout
