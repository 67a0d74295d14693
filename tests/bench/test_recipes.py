"""The shipped recipes: each is a valid config, and its engines agree on real photographs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe import config as configs
from gpupipe.bench import parity
from gpupipe.schema import builtin_configs

RECIPES = sorted(builtin_configs.names("pipelines"))


@pytest.mark.parametrize("name", sorted(builtin_configs.names("configs")))
def test_a_shipped_config_is_valid_and_names_its_source(name: str) -> None:
    config = configs.read(name)
    assert config.pipeline.name in RECIPES
    text = builtin_configs.locate("configs", name).read_text()
    assert text.startswith("# ") and len(text.splitlines()[0]) > 20


@pytest.mark.parametrize("name", RECIPES)
def test_engines_agree_on_a_recipe(photos: Path, name: str) -> None:
    config = configs.read(
        {"data": {"source": "folder", "root": str(photos)}, "pipeline": name}, device="cpu"
    )
    (found,) = parity.measure(config, config.source.index(), ["cpu"], 4, last=True)
    assert found.images == 4
    assert found.holds, found
