"""gpupipe schema, and an editor's language server that reads what it writes."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpupipe.cli.app import main
from helpers.language_server import LanguageServer

PACKAGE = "yaml-language-server@1"
SECONDS = 600
TEXT = """\
# yaml-language-server: $schema=../schemas/config.json
data: {source: folder, root: photos}
pipeline:
  - decode
  - random_affine:
      degrees: 5
      shear: 3
  - random_horizontal_flp
loader:
  batch_size: 64
  devise: cpu
"""


def test_schema_prints_json() -> None:
    for kind in ("config", "pipeline"):
        done = CliRunner().invoke(main, ["schema", kind])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["title"] == f"gpupipe {kind}"
    assert CliRunner().invoke(main, ["schema", "confg"]).exit_code == 2


def test_install_writes_both_where_files_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["schema", "--install"]).exit_code == 0
    found = {path.name for path in (tmp_path / "schemas").iterdir()}
    assert found == {"config.json", "pipeline.json"}
    (tmp_path / "file").write_text("")
    assert CliRunner().invoke(main, ["schema", "--out", "other"]).exit_code == 0
    assert {path.name for path in (tmp_path / "other").iterdir()} == found
    done = CliRunner().invoke(main, ["schema", "--install", "--out", "file/x"])
    assert done.exit_code == 1
    assert "file/x cannot be written" in done.output


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The language server: the installed one, else one that npm installs."""
    if found := shutil.which("yaml-language-server"):
        return [found]
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("npm is not installed, which installs yaml-language-server")
    folder = tmp_path_factory.mktemp("npm")
    words = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", PACKAGE]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode:
        pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    return [node, str(folder / "node_modules/yaml-language-server/bin/yaml-language-server")]


@pytest.fixture
def editor(command: list[str], tmp_path: Path) -> Iterator[LanguageServer]:
    done = CliRunner().invoke(main, ["schema", "--install", "--out", str(tmp_path / "schemas")])
    assert done.exit_code == 0, done.output
    (tmp_path / "configs").mkdir()
    with LanguageServer(command, tmp_path) as server:
        yield server


def test_an_editor_marks_typos_completes_and_explains(
    editor: LanguageServer, tmp_path: Path
) -> None:
    path = tmp_path / "configs" / "mine.yaml"
    path.write_text(TEXT)
    marks = editor.open(path)
    lines = sorted(mark["range"]["start"]["line"] for mark in marks)
    assert lines == [7, 10], marks
    assert any("devise" in mark["message"] for mark in marks)
    assert "The angle" in editor.hover(path, 5, 8)
    assert "Samples per batch" in editor.hover(path, 9, 4)

    other = tmp_path / "configs" / "other.yaml"
    other.write_text(TEXT.replace("      shear: 3\n", "      \n").replace("flp", "flip"))
    editor.open(other)
    assert {"shear", "translate", "scale", "fill"} <= set(editor.complete(other, 6, 6))
    steps = tmp_path / "configs" / "steps.yaml"
    steps.write_text("\n".join(TEXT.splitlines()[:4]) + "\n  - \n")
    editor.open(steps)
    offered = editor.find_insertions(steps, 4, 4)
    assert (offered["random_affine"], offered["decode"]) == (
        "random_affine: {degrees: $1}",
        "decode",
    )
    for step in offered.values():
        text = [*TEXT.splitlines()[:3], f"  - {step.replace('$1', '1')}"]
        yaml.safe_load("\n".join(text))


def test_an_editor_marks_names_and_says_no_more_than_them(
    editor: LanguageServer, tmp_path: Path
) -> None:
    path = tmp_path / "configs" / "mine.yaml"
    head = TEXT.splitlines()[0] + "\ndata: {source: folder, root: x}\n"
    for text, message in {
        "pipeline:\n  - random_afine: {degrees: 5}": "Did you mean random_affine?",
        "pipeline: imagenet_trian": '"imagenet_train"',
        "pipeline: affine\nloader: {device: gpux}": '"gpu:0"',
    }.items():
        path.write_text(head + text + "\n")
        marks = editor.open(path)
        assert {mark["range"]["start"]["line"] for mark in marks} == {2 + text.count("\n")}
        assert message in marks[-1]["message"]
        path = path.with_name(f"{path.stem}_.yaml")
    path.write_text(head + "pipeline: affine\nloader:\n  device: \n")
    editor.open(path)
    assert {"auto", "cpu", "gpu", "cuda", "gpu:0"} <= set(editor.complete(path, 4, 10))
    shown = path.with_name("shown.yaml")
    shown.write_text(head + "pipeline:\n  - decode\nloader:\n  device: cpu\n")
    assert editor.open(shown) == []
    for line, column, words in ((3, 5, "#### step\n"), (5, 4, "#### loader\n\nWhere batches are")):
        assert editor.hover(shown, line, column).startswith(words)


def test_the_shipped_files_have_no_mark(editor: LanguageServer, tmp_path: Path) -> None:
    for name in ("lfw", "segmentation_train", "progressive_resizing", "timm_a1"):
        shipped = CliRunner().invoke(main, ["show", name, "--kind", "config"]).output
        path = tmp_path / "configs" / f"{name}.yaml"
        path.write_text(shipped)
        assert editor.open(path) == [], name
