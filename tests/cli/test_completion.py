"""Shell completion, in a real bash and by click's own protocol."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import gpupipe
from gpupipe.cli.app import main
from gpupipe.cli.completion import SHELLS


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


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_GPUPIPE_COMPLETE" in done.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_value(tmp_path: Path) -> None:
    program = tmp_path / "gpupipe"
    program.write_text(f"#!{sys.executable}\nfrom gpupipe.cli.app import main\nmain()\n")
    program.chmod(0o755)
    script = CliRunner().invoke(main, ["completion", "bash"]).output
    words = "COMP_WORDS=(gpupipe run lfw device=g); COMP_CWORD=3"
    breaks = "COMP_WORDBREAKS=' =:'"  # as in a shell that a person uses
    code = f"{breaks}\n{script}\n{words}\n_gpupipe_completion gpupipe\n"
    code += 'echo "${COMPREPLY[@]}"; echo "[$COMP_WORDBREAKS]"'
    package = Path(gpupipe.__file__).parents[1]
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(package)}
    done = subprocess.run(
        ["bash", "-c", code],
        env=os.environ | path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.stdout.splitlines() == ["device=gpu", "[ :]"], done.stderr


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == (
        f"gpupipe, version {gpupipe.__version__}\n"
    )
