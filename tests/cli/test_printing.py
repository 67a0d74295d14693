"""Lines for people: whole words on a terminal, untouched elsewhere."""

import pty
import sys
import termios

import pytest

from gpupipe.cli import printing


def test_a_terminal_gets_lines_that_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 20))
    with open(terminal, "rb") as file, open(side, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        printing.print_warning("no step fixes the size of images")
        stderr.flush()
        lines = file.read1(1000).decode().splitlines()
    assert lines == ["warning: no step", "fixes the size of", "images"]


def test_a_pipe_gets_whole_lines_and_no_announcement(capsys: pytest.CaptureFixture[str]) -> None:
    printing.say("long words " * 50)
    printing.announce("reading lfw")
    assert capsys.readouterr() == ("long words " * 50 + "\n", "")
