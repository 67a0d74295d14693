"""gpupipe try: what it finds, its pixels, its rates and its picture, without a config."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import gpupipe
from gpupipe.bench import first_look
from gpupipe.bench.comparison import Comparison
from gpupipe.bench.contestant import Contest
from gpupipe.cli.app import main
from helpers.init_runs import jpeg


@pytest.mark.usefixtures("forked_executable")
def test_a_folder_is_tried_and_the_lines_it_prints_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One second is not enough for the rates: they get two rounds all the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CACHEDIR.TAG").touch()  # uvx makes an environment in its cache
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    for n in range(12):
        path = tmp_path / "images" / "ab"[n % 2] / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(200 + n))
    result = CliRunner().invoke(main, ["try", "images", "--seconds", "1"])
    assert result.exit_code == 0, result.output
    assert "12 samples in 2 classes: a, b" in result.output
    assert "round 2: DataLoader" in result.output
    assert "round 3" not in result.output
    assert result.output.count("holds") == 5
    with Image.open("gpupipe_try/batch.png") as picture:
        assert picture.width > 200
    *_, install, _, load, fields = result.output.splitlines()
    assert install.strip().startswith("pip install")
    assert load.strip() == "for batch in gpupipe.load('gpupipe_try/train.yaml'):"
    with gpupipe.load("gpupipe_try/train.yaml", device="cpu") as loader:
        assert [f'batch["{name}"]' for name in next(iter(loader))] == fields.split("# ")[1].split(
            ", "
        )


@pytest.mark.parametrize("content", [{}, {"notes.txt": b"no image"}], ids=["empty", "no image"])
def test_a_folder_without_images_is_one_line(
    content: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "images"
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    result = CliRunner().invoke(main, ["try", "images"])
    assert result.exit_code == 1
    assert not Path("gpupipe_try").exists()
    assert "images" in result.output.splitlines()[-1]


def test_a_folder_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(main, ["try", "no_such_folder"])
    assert result.exit_code in (1, 2)
    assert "no_such_folder" in result.output


def test_the_picture_is_not_written_among_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jpg").write_bytes(jpeg(200))
    result = CliRunner().invoke(main, ["try", "."])
    assert result.exit_code == 2
    assert "../gpupipe_try" in " ".join(result.output.split())
    assert not Path("gpupipe_try").exists()


def test_arrays_that_are_no_images_are_tried_without_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*args: Any) -> Comparison:
        return Comparison([], Contest("", (), {}, [0], 1, 1, False), 1, [])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(first_look, "compare_within", compare)
    (tmp_path / "arrays").mkdir()
    np.save("arrays/x.npy", np.zeros((8, 6, 6, 3), np.uint8))
    result = CliRunner().invoke(main, ["try", "arrays"])
    assert result.exit_code == 0, result.output
    assert "not drawn: " in result.output
    assert "holds" in result.output
    assert not Path("gpupipe_try/batch.png").exists()
