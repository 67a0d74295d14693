"""`gpupipe convert`: what it prints, and how it ends."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from gpupipe.cli.app import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config of six PNGs in two classes, the last of which is cut off."""
    root = tmp_path / "photos"
    for number in range(6):
        folder = root / "cat dog".split()[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").rotate(number * 9).save(folder / f"{number}.png")
    cut = root / "dog" / "5.png"
    os.truncate(cut, cut.stat().st_size // 2)
    file = tmp_path / "c.json"
    data = {"source": "folder", "root": str(root)}
    file.write_text(json.dumps({"data": data, "pipeline": ["decode"]}))
    return file


def convert(config: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["convert", str(config), *words])


def test_it_says_what_is_kept_what_is_changed_and_what_is_left_out(
    config: Path, tmp_path: Path
) -> None:
    failed = convert(config, f"{tmp_path}/out")
    assert failed.exit_code == 1
    assert "5.png" in failed.output
    json_path = tmp_path / "o.json"
    words = ("loader.on_error=skip", "loader.max_bad=0.5", "--json", str(json_path))
    done = convert(config, f"{tmp_path}/out", *words, "--max-side", "100")
    assert done.exit_code == 1, "the shards of the first run are of another kind"
    done = convert(config, f"{tmp_path}/small", *words, "--max-side", "100")
    assert done.exit_code == 0, done.output
    assert "5 samples in " in done.output
    assert "5 files made smaller, to 100 pixels" in done.output
    assert "1 sample left out" in done.output
    assert "dog/5.png: " in done.output
    assert f"gpupipe run {tmp_path}/small/c.yaml" in done.output
    results = json.loads(json_path.read_text())
    assert results["samples"] == 5
    assert results["changes"] == {"reduced": 5}
    assert len(results["skipped"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--quality", "80"), "write --max-side, too"),
        (("--raw", "--max-side", "9"), "leave out --max-side"),
        (("--shard-size", "plenty"), "'plenty' is no size"),
        (("--format", "zip"), "'zip'"),
    ],
)
def test_wrong_options_are_named(
    config: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    result = convert(config, f"{tmp_path}/out", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
