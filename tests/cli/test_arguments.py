"""Results that cannot be written: told before anything is measured, and printed in any case."""

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from gpupipe.cli.app import main
from gpupipe.cli.arguments import options, writing
from gpupipe.errors import GpupipeError
from helpers import disks, forked_python
from helpers.forked_python import executable

COMMANDS = [
    ["run", "--json"],
    ["run", "--show"],
    ["profile", "--json"],
    ["tune", "--json"],
    ["compare", "--json"],
    ["compare", "--out"],
]


@pytest.fixture
def config(faces: Path, tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"data: {{source: folder, root: {faces}}}\npipeline: [decode]\nloader: "
        f"{{batch_size: 16, device: cpu}}\n"
    )
    return file


@pytest.fixture(params=["no folder", "a file for a folder", "proc", "read-only", "full"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Folders that nothing can be written to, not even by root."""
    if request.param in ("read-only", "full"):
        with disks.mounted(
            tmp_path / "disk", "16k", read_only=request.param == "read-only"
        ) as disk:
            if request.param == "full":
                disks.fill(disk)
            yield disk
        return
    (tmp_path / "file").touch()
    yield {
        "no folder": tmp_path / "nowhere",
        "a file for a folder": tmp_path / "file",
        "proc": Path("/proc"),
    }[request.param]


def gpupipe(*words: object) -> subprocess.CompletedProcess[str]:
    return forked_python.run(["-m", "gpupipe", *words])


def test_results_on_stdout_are_alone_there(config: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(config), "--json", "-"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout).keys() >= {"operators", "facts"}
    assert "60 samples" in done.stderr, "what it prints is on stderr"
    again = CliRunner().invoke(main, ["check", str(config)])
    assert "60 samples" in again.stdout, "the next command prints as usual"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_cannot_be_written_is_a_usage_mistake_before_anything_is_measured(
    words: list[str], unwritable: Path
) -> None:
    """The config does not exist: whoever measured first would say so."""
    done = gpupipe(
        words[0],
        "no-such-config.yaml",
        words[1],
        unwritable / ("x" if words[1] == "--out" else "x.png"),
    )
    assert done.returncode == 2, done.stderr
    error = done.stderr.splitlines()[-1]
    if words[-1] == "--out" and unwritable.name == "nowhere":
        assert "no-such-config" in done.stderr, "--out makes its folder"
        return
    assert error.startswith(f"error: Invalid value for '{words[1]}': {unwritable / 'x'}")
    assert "cannot be written" in error
    assert "no-such-config" not in error


def test_looking_leaves_nothing_behind_and_spoils_nothing(config: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("kept")
    done = gpupipe("run", config.with_name("none.yaml"), "--json", old)
    assert done.returncode == 2
    assert old.read_text() == "kept"
    done = gpupipe(
        "compare",
        config.with_name("none.yaml"),
        "--json",
        tmp_path / "new.json",
        "--out",
        tmp_path / "a" / "b",
    )
    assert done.returncode == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "old.json"]


def test_a_name_that_is_no_picture_is_a_usage_mistake(config: Path, tmp_path: Path) -> None:
    done = gpupipe("run", config, "--show", tmp_path / "grid.json")
    assert done.returncode == 2
    assert "'.json' of" in done.stderr
    assert "name it .png or .jpg" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [
    ["run", "--repeats", "1"],
    ["compare", "--repeats", "1", "--batches", "3", "--cpu-workers", "0"],
    ["profile", "--repeats", "1", "--repeat-seconds", "0.05"],
], ids=lambda words: words[0])  # fmt: skip
def test_results_are_printed_though_writing_fails(
    config: Path, tmp_path: Path, words: list[str]
) -> None:
    """/dev/full can be opened, and takes no byte."""
    words = [*words, "--json", "/dev/full"] + (
        ["--out", str(tmp_path / "out")] if words[0] == "compare" else []
    )
    done = gpupipe(words[0], config, *words[1:])
    assert done.returncode == 1
    assert "images/s" in done.stdout
    assert (
        done.stderr.splitlines()[-1]
        == "error: /dev/full cannot be written: no space left on device"
    )
    assert "Traceback" not in done.stderr
    if words[0] == "compare":
        assert "single round" in done.stdout
        assert json.loads((tmp_path / "out" / "results.json").read_text())["sides"], (
            "the other file is written all the same"
        )


def test_a_file_that_is_not_written_whole_is_removed_if_it_is_new(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("old")
    for path, name in ((new, "new"), (old, "old"), (tmp_path / ("x" * 300), "name too long")):
        said = f"cannot be written.*{name}|{name} cannot"
        with pytest.raises(GpupipeError, match=said), writing(path):
            path.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert sorted(tmp_path.iterdir()) == [old]


def test_results_go_to_a_pipe(config: Path, tmp_path: Path) -> None:
    """What is no file is not opened before there is something to write."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [
        executable(),
        "-m",
        "gpupipe",
        "run",
        str(config),
        "--repeats",
        "1",
        "--json",
        str(fifo),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        assert json.loads(fifo.read_text())["what"]["images"] == 60
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "lfw", "--ipc", "folder"],
        ["serve", "lfw", "--state", "folder"],
        ["serve", "lfw", "--keys", "folder"],
        ["serve", "lfw", "--allow", "file"],
        ["status", "tcp://127.0.0.1:1", "--key", "folder"],
        ["status", "tcp://127.0.0.1:1", "--server-key", "folder"],
        ["keys", "new", "me", "--out", "file"],
    ],
    ids=" ".join,
)
def test_a_folder_for_a_file_is_a_usage_mistake(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-2]}'" in result.output


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("serve", "--state FILE"),
        ("serve", "--allow DIRECTORY"),
        ("tune", "--keep SETTING"),
        ("compare", "--cpu-workers N[,N]..."),
    ],
)
def test_help_names_the_values_of_options(command: str, shown: str) -> None:
    assert shown in CliRunner().invoke(main, [command, "--help"]).output


def test_an_option_of_several_values_takes_texts() -> None:
    @click.command()
    @options
    def print_names(names: Annotated[tuple[str, ...], "--name", "Names."] = ()) -> None:
        click.echo(names)

    result = CliRunner().invoke(print_names, ["--name", "one", "--name", "two"])
    assert result.output == "('one', 'two')\n"
