"""What the docs show as output is what the commands print today."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpupipe.cli.app import main
from helpers import photographs

DOCS = Path(__file__).parents[2] / "docs"

RGB = "data: {source: folder, root: photos}\n"
WRONG = """\
data: {source: folder, root: ./photos, extension: [jpg]}
pipeline:
- decode
- normalize: {mean: [0.5], std: [0.5]}
- random_afine: {degrees: 5}
loader: {batch_size: many}
"""


def read_output(page: str, first: str) -> list[str]:
    """Return the lines of the block of a page that begins with `first`, without empty ones."""
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```(?:yaml)?\n(.*?)^```$", text, re.M | re.S)
    found = [block for block in blocks if block.startswith(first)]
    assert len(found) == 1, f"{page}: {len(found)} blocks begin with {first!r}"
    return squeeze(found[0])


def squeeze(text: str) -> list[str]:
    """Return the lines that are not empty, with runs of spaces and of ─ made one."""
    lines = (re.sub(r"─+", "─", re.sub(r" +", " ", line)).strip() for line in text.splitlines())
    return [line for line in lines if line]


@pytest.fixture
def folder(faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "photos").symlink_to(faces)
    return tmp_path


def printed(*words: str) -> list[str]:
    return squeeze(CliRunner().invoke(main, list(words)).output)


@pytest.mark.parametrize(
    ("page", "first", "words"),
    [
        ("commands.md", "engines\n", ["list", "engines"]),
        ("commands.md", "step random_rotation", ["show", "random_rotation"]),
        (
            "commands.md",
            "on the cpu\n",
            ["check", "imagenet_eval", "data.root=photos", "device=cpu", "engine=dali"],
        ),
    ],
)
def test_what_a_command_prints(folder: Path, page: str, first: str, words: list[str]) -> None:
    shown, lines = read_output(page, first), printed(*words)
    start = lines.index(shown[0])
    assert lines[start : start + len(shown)] == shown


def test_the_pages_list_every_engine(folder: Path) -> None:
    """The test above would not see an engine after the last line of the page."""
    assert printed("list", "engines") == read_output("commands.md", "engines\n")


@pytest.mark.parametrize(
    ("first", "pipeline"),
    [
        (
            "p.yaml:4:3: random_invert",
            "- decode\n- to_dtype: {dtype: float32, scale: true}\n"
            "- normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}\n- random_invert\n",
        ),
        (
            "p.yaml:4:26: timm_augment",
            "- decode\n- random_resized_crop: {size: 64}\n- random_horizontal_flip\n"
            "- timm_augment: {policy: rand-m9-msdt0.5}\n",
        ),
    ],
)
def test_errors_of_pipelines(folder: Path, first: str, pipeline: str) -> None:
    Path("p.yaml").write_text(pipeline)
    Path("c.yaml").write_text(RGB + "pipeline: p.yaml\n")
    for line in read_output("configuration.md", first):
        assert line in printed("check", "c.yaml")


def test_errors_of_a_config(folder: Path) -> None:
    Path("wrong.yaml").write_text(WRONG)
    assert printed("check", "wrong.yaml") == read_output("configuration.md", "error: 4 mistakes")


def test_what_init_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").symlink_to(photographs.find_or_write() / "photos")
    printed("init", "photos", "--out", "train.yaml")
    shown = read_output("commands.md", "# Written by 'gpupipe init photos'")
    assert squeeze(Path("train.yaml").read_text()) == shown
