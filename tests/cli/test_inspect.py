"""`gpupipe inspect`: what it prints, and how it ends."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from gpupipe.cli.app import main

LONG_AGO = 1_000_000_000


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config of two PNGs, one of which is named .jpg."""
    root = tmp_path / "photos" / "cat"
    root.mkdir(parents=True)
    Image.linear_gradient("L").save(root / "a.png")
    Image.radial_gradient("L").save(root / "b.jpg", format="PNG")
    data = {"source": "folder", "root": str(root.parent)}
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"data": data, "pipeline": ["decode"]}))
    return file


def inspect(config: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["inspect", str(config), *words])


def test_it_fails_on_the_kinds_that_were_named(config: Path, tmp_path: Path) -> None:
    passed = inspect(config, "--headers", "--fail-on", "broken", "--json", f"{tmp_path}/o.json")
    assert passed.exit_code == 0, passed.output
    assert "train: cat/b.jpg: a PNG" in passed.output
    results = json.loads((tmp_path / "o.json").read_text())
    assert [s["id"] for group in results["findings"]["extensions"] for s in group] == [1]
    failed = inspect(config, "--headers", "--fail-on", "broken,extensions")
    assert failed.exit_code == 1
    os.truncate(tmp_path / "photos" / "cat" / "a.png", 100)
    assert inspect(config, "--headers", "--fail-on", "broken").exit_code == 1  # truncated ones too


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fail-on", "brokn"), "did you mean 'broken'"),
        (("--fail-on", "leaks"), "--val"),
        (("--fail-on", "near", "--headers"), "leave out --headers"),
    ],
)
def test_wrong_options_are_named(config: Path, words: tuple[str, ...], message: str) -> None:
    result = inspect(config, *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_missing_library_is_named_with_the_command(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    result = inspect(config)
    assert result.exit_code == 1
    assert "scipy" in result.output
    assert "[inspect]" in result.output
