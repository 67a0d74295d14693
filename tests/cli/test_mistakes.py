"""Mistakes of a configuration, as the commands print them."""

import pty
import sys
import termios
from pathlib import Path

import pytest

from gpupipe import config as configs
from gpupipe.cli.mistakes import print_mistakes
from gpupipe.errors import ConfigError

LONG = "x" * 200
WRONG = f"""\
data: {{source: folder, root: {LONG}, extension: [jpg]}}
pipeline:
- decode
"""


def printed(capsys: pytest.CaptureFixture[str], path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        configs.read(str(path), overrides)
    print_mistakes(caught.value)
    return capsys.readouterr().err.splitlines()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "wrong.yaml"
    path.write_text("data: {source: folder, rot: x}\nloader:\n  device: cpu\n  batch_size: many\n")
    return path


def test_a_caret_is_below_each_mistake(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, path, "prefetch=few")
    assert lines[0] == "error: 4 mistakes in the configuration"
    (number,) = (n for n, line in enumerate(lines) if line.startswith(f"{path}:4:15: "))
    assert lines[number + 1 : number + 3] == ["      batch_size: many", " " * 18 + "^"]
    assert lines[-1].startswith("'prefetch=few': "), "an override is its own quotation"


def test_of_a_long_line_the_part_around_the_mistake_is_shown(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(WRONG)
    _, what, line, caret, *_ = printed(capsys, path)
    assert "data.extension" in what
    assert len(line) <= 104
    assert line[caret.index("^") :].startswith("extension: [jpg]")
    assert line.startswith("    …"), "what is cut is marked"


def test_a_line_is_cut_to_the_width_of_the_terminal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("pipeline: [decode, hflipp, to_dtype: {dtype: float32, scale: true}]\n")
    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 40))
    with open(terminal, "rb") as file, open(side, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("NO_COLOR", "1")
        with pytest.raises(ConfigError) as caught:
            configs.read(str(path), ())
        print_mistakes(caught.value)
        print("end", file=stderr, flush=True)
        lines = [line.decode().rstrip() for line in iter(file.readline, b"end\r\n")]
    line, caret = lines[-2:]
    assert line == "    pipeline: [decode, hflipp, to_dtype…"
    assert [line for line in lines if len(line) > 40] == [f"{path}:1:1:", f"{path}:1:20:"]
    assert "unknown step 'hflipp'" in " ".join(lines)
    assert caret.index("^") == line.index("hflipp")


@pytest.mark.parametrize(
    ("name", "is_colored"), [("FORCE_COLOR", True), ("NO_COLOR", False), ("", False)]
)
def test_colour_is_for_terminals_unless_the_environment_says_otherwise(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_colored: bool,
) -> None:
    if name:
        monkeypatch.setenv(name, "1")
    text = "\n".join(printed(capsys, path))
    assert ("\x1b[31m\x1b[1m^" in text) == is_colored
    assert ("\x1b" in text) == is_colored


def test_no_password_is_in_a_quoted_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("data: {source: folder, root: 'ftp://me:geheim@host/a?t=geheim', rot: x}\n")
    lines = printed(capsys, path, "data.roots=https://me:geheim@host")
    assert "geheim" not in "".join(lines)
    quoted = "    data: {source: folder, root: 'ftp://me:***@host/a?***', rot: x}"
    assert f"{quoted}\n{' ' * quoted.index('rot:')}^" in "\n".join(lines)


def test_no_password_is_quoted_where_the_caret_points_into_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text('data: {url: "http://me:ge\\qheim@host/a"}\n')
    *_, quoted, caret = printed(capsys, path)
    assert quoted.endswith('data: {url: "http://me:***@host/a"}')
    assert caret.index("^") == quoted.index("***")
