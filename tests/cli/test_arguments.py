"""What a shell completes CONFIG and KEY=VALUE to, by click's own protocol."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from gpupipe.cli.app import main


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
