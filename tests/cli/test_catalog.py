"""The items that a config can name, and the completion of words, in real shells and by click's own
protocol.
"""

import os
import pty
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import gpupipe
from gpupipe.cli.app import main
from gpupipe.cli.catalog import KINDS, SHELLS, first_sentence, list_items
from helpers import forked_python


@pytest.mark.parametrize("kind", KINDS)
def test_every_item_has_a_summary_of_one_sentence(kind: str) -> None:
    items = list_items(kind)
    assert items
    for item in items:
        assert 10 < len(item.summary) < 200, item
        assert "\n" not in item.summary


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One. Two.", "One."),
        ("Root/CLASS/..., in order. Two", "Root/CLASS/..., in order."),
        ("One\nline. Two", "One line."),
        ("One\n\nTwo.", "One"),
        ("", ""),
    ],
)
def test_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_GPUPIPE_COMPLETE" in done.output


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where a shell finds the program gpupipe, and no settings of a person."""
    program = tmp_path / "gpupipe"
    program.write_text(
        f"#!{forked_python.executable()}\nfrom gpupipe.cli.app import main\nmain()\n"
    )
    program.chmod(0o755)
    package = str(Path(gpupipe.__file__).parents[1])
    path = f"{tmp_path}:{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": package, "HOME": str(tmp_path), "TERM": "xterm"}
    return os.environ | own


INTERACTIVE = {
    "bash": (["bash", "--norc", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit && compinit -u -D; "),
}
COMPLETED = [
    ("show-b", "show-batch"),
    ("run imagenet_ev", "imagenet_eval"),
    ("run lfw device=g", "device=gpu"),
    ("run lfw pipeline=imagenet_e", "pipeline=imagenet_eval"),
]


def skip_without(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed (apt-get install {shell})")


def read_until(terminal: int, text: str) -> None:
    """Wait until the shell has printed a text."""
    printed, end = b"", time.monotonic() + 120
    while text.encode() not in printed:
        assert time.monotonic() < end, printed.decode(errors="replace")
        if select.select([terminal], [], [], 1)[0]:
            printed += os.read(terminal, 4096)


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_tab_in_a_terminal(shell: str, environment: dict[str, str]) -> None:
    skip_without(shell)
    words, before = INTERACTIVE[shell]
    pid, terminal = pty.fork()
    if not pid:
        os.execvpe(words[0], words, environment)
    try:
        load = f'{before}eval "$(gpupipe completion {shell})"; echo rea""dy\n'
        os.write(terminal, load.encode())
        read_until(terminal, "ready")
        for typed, completed in COMPLETED:
            os.write(terminal, f"gpupipe {typed}\t".encode())
            read_until(terminal, completed)
            os.write(terminal, b"\x15")  # Ctrl-U: an empty line
        os.write(terminal, b"gpupipe run lfw batch_s\t")
        read_until(terminal, "batch_size=")
        os.write(terminal, b"7\x01echo \n")  # Ctrl-A: to the beginning of the line
        read_until(terminal, "gpupipe run lfw batch_size=7\r\n")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_fish_completes(environment: dict[str, str]) -> None:
    skip_without("fish")
    cases = [*COMPLETED, ("run lfw batch_s", "batch_size=")]
    code = "gpupipe completion fish | source; " + "; ".join(
        f"complete -C 'gpupipe {typed}'" for typed, _ in cases
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert [line.partition("\t")[0] for line in done.stdout.split("\n")[:-1]] == [
        completed for _, completed in cases
    ]


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == (
        f"gpupipe, version {gpupipe.__version__}\n"
    )


# --- what words are completed to


def complete(*words: str) -> list[str]:
    *before, last = words
    found = ShellComplete(main, {}, "gpupipe", "_X").get_completions(before, last)
    return [item.value for item in found]


def test_commands_and_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"show-batch", "show"} == set(complete("sho"))
    assert complete("run", "lf") == ["lfw", "lfw_heavy"]
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "lfs.yaml").write_text("")
    (tmp_path / "lf.yml").write_text("")
    assert complete("check", "lf") == ["lfs", "lfw", "lfw_heavy", "lf.yml"]
    (tmp_path / "lf.json").write_text("")
    assert complete("serve", "lf.") == ["lf.json", "lf.yml"]
    assert complete("serve", "configs/l") == ["configs/lfs.yaml"]
    assert complete("run", "/nowhere/x") == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["batch_s"], ["batch_size="]),
        (["pip"], ["pipeline="]),
        (["pipeline=aff"], ["pipeline=affine", "pipeline=affine_heavy"]),
        (["data.source=t"], ["data.source=tfrecord"]),
        (["device=c"], ["device=cpu"]),
        (["engine=da"], ["engine=dali", "engine=dataloader"]),
        (["decoder=pi"], ["decoder=pil", "decoder=pillow"]),
        (["last_batch=p"], ["last_batch=partial", "last_batch=pad"]),
        (["loader.shuffle="], ["loader.shuffle=true", "loader.shuffle=false"]),
        (["a=1", "dtype=b"], ["dtype=bfloat16"]),
        (["data.root=x"], []),
    ],
    ids=str,
)
def test_settings_and_their_values(words: list[str], found: list[str]) -> None:
    assert complete("run", "lfw", *words) == found


def test_names_of_what_is_shown() -> None:
    assert "random_rotation" in complete("show", "random_r")
    assert "imagenet_train" in complete("gallery", "imagenet")


def test_folders_and_files_are_completed_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("a.yaml", "b.json", "c.txt"):
        (tmp_path / name).write_text("")
    found = [f"{tmp_path}/{name}" for name in ("a.yaml", "b.json", "folder/")]
    assert complete("run", f"{tmp_path}/") == found
