"""The config that is written beside the shards."""

from pathlib import Path

import pytest
import yaml

from gpupipe import config as configs
from gpupipe.conversion.convert import ConversionResult, convert
from gpupipe.conversion.plan import Options
from gpupipe.errors import ConfigError
from gpupipe.runtime.progress import ignore_progress
from helpers.conversions import run, write_config


def test_it_has_the_steps_and_settings_of_the_source(
    photo_config: Path, tarred: ConversionResult
) -> None:
    before, after = configs.read(photo_config), configs.read(tarred.config)
    assert after.loader == before.loader
    assert [e.step for e in after.pipeline.entries] == [e.step for e in before.pipeline.entries]
    assert tarred.config.name == "train.yaml"


def test_steps_from_a_file_beside_the_config_are_written_into_it(
    photo_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text("- decode: {mode: gray}\n- resize: {size: 8}\n")
    config = write_config(tmp_path, {"source": "folder", "root": str(photo_folder)}, "own.yaml")
    result = run(config, tmp_path / "out", shard_bytes=10**9)
    assert yaml.safe_load(result.config.read_text())["pipeline"] == [
        {"decode": {"mode": "gray"}},
        {"resize": {"size": 8}},
    ]


def test_views_that_decode_by_themselves_are_refused_before_anything_is_written(
    photo_folder: Path, tmp_path: Path
) -> None:
    views = {"a": ["decode", {"resize": {"size": 8}}], "b": [{"decode": {"mode": "gray"}}]}
    steps = {"steps": [], "views": {name: {"steps": view} for name, view in views.items()}}
    config = write_config(tmp_path, {"source": "folder", "root": str(photo_folder)}, steps)
    with pytest.raises(ConfigError, match="decode"):
        convert(configs.read(config), tmp_path / "out", Options(raw=True), ignore_progress)
    assert not (tmp_path / "out").exists()
