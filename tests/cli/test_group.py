"""The help of all commands: sections, and an example that each command takes."""

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpupipe.cli.app import main
from gpupipe.cli.group import SECTIONS


def test_every_command_is_in_one_section_of_the_help() -> None:
    names = [name for examples in SECTIONS.values() for name in examples]
    assert sorted(names) == sorted(main.commands)
    text = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert [line[:-1] for line in text.splitlines() if line[:-1] in SECTIONS] == list(SECTIONS)
    assert "..." not in text.partition("Start:")[2], "summaries are whole"


@pytest.mark.parametrize("words", [[], ["compare"], ["cache", "evict"]], ids=" ".join)
def test_a_help_is_as_narrow_as_its_terminal(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = CliRunner().invoke(main, [*words, "--help"]).output.splitlines()
    examples = [line for line in lines if line.lstrip().startswith("Example: ")]
    assert [line for line in lines if len(line) > 40 and line not in examples] == []
    assert lines == [line.rstrip() for line in lines]
    assert all(f"gpupipe {' '.join(words)}" in line for line in examples), "one line, to copy"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [pair for examples in SECTIONS.values() for pair in examples.items()],
    ids=[name for examples in SECTIONS.values() for name in examples],
)
def test_a_command_takes_its_example(
    name: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, words = main.commands[name], shlex.split(arguments)
    if isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(name, words)
    text = CliRunner().invoke(main, [name, "--help"], terminal_width=200).output
    assert f"Example: gpupipe {name} {arguments}".rstrip() in text
    assert '[default: ""]' not in text
