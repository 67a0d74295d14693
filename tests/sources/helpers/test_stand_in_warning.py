"""Drawn faces in the place of LFW are never delivered without a word, in Python and in commands."""

import os
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from helpers import forked_python
from helpers.full_product import IS_FULL
from helpers.served import serving

EXAMPLES = Path(__file__).parents[3] / "examples"
SAID = r"stand-in data, not LFW: lfw could not be fetched.*'gpupipe fetch lfw'"
FEW: dict[str, Any] = {"data": {"stand_in": 8}, "device": "cpu", "batch_size": 4, "threads": 1}
WORDS = ["lfw", "data.stand_in=8", "device=cpu", "batch_size=4"]


@pytest.fixture(autouse=True)
def _without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPIPE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")


def run_gpupipe(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked_python.run(words, cwd=folder, check=True)


def test_load_warns_at_the_users_line_each_time() -> None:
    for _ in range(2):  # it is made, and then it is there
        with (
            pytest.warns(gpupipe.StandInWarning, match=SAID) as caught,
            gpupipe.load("lfw", **FEW) as loader,
        ):
            assert "(stand-in data, not LFW)" in repr(loader)
            assert "(stand-in data, not LFW)" in repr(loader.index)
        assert [w.filename for w in caught] == [__file__]


def test_the_warning_can_be_filtered() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gpupipe.StandInWarning)
        gpupipe.load("lfw", **FEW).close()


def test_data_that_was_asked_for_is_no_reason_to_warn(faces: Path) -> None:
    """Warnings are errors here."""
    gpupipe.load("lfw", **FEW | {"data": {"root": faces}}).close()


def test_another_root_is_named(tmp_path: Path) -> None:
    changes = FEW | {"data": {"root": tmp_path / "mine", "stand_in": 8}}
    match = f"gpupipe fetch lfw --root {tmp_path / 'mine'}'"
    with pytest.warns(gpupipe.StandInWarning, match=match):
        gpupipe.load("lfw", **changes).close()


def test_a_client_of_a_server_is_warned() -> None:
    config = {
        "data": {"source": "folder", "root": os.environ["GPUPIPE_DATA"] + "/lfw", "fetch": "lfw"},
        "pipeline": ["decode"],
        "loader": {"engine": "dataloader", "workers": 0, "device": "cpu", "batch_size": 4},
    }
    with pytest.warns(gpupipe.StandInWarning), serving(config, {"data": {"stand_in": 8}}) as server:
        with (
            pytest.warns(gpupipe.StandInWarning, match=SAID) as caught,
            gpupipe.connect(server.address, device="cpu") as loader,
        ):
            assert "(stand-in data, not LFW)" in repr(loader)
        assert [w.filename for w in caught] == [__file__]


def test_commands_do_not_say_it_twice(tmp_path: Path) -> None:
    done = run_gpupipe(tmp_path, "-m", "gpupipe", "run", *WORDS, "--repeats", "1")
    assert done.stdout.count("stand-in data, not LFW") == 1
    assert "not LFW" not in done.stderr


@pytest.mark.parametrize("words", [("run", "--quiet"), ("parity", "--samples", "1")])
def test_commands_that_do_not_show_it_say_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    command, *options = words
    done = run_gpupipe(tmp_path, "-m", "gpupipe", command, *WORDS, *options)
    assert done.stderr.count("warning: stand-in data, not LFW") == 1
    assert "not LFW" not in done.stdout


def test_the_example_scripts_print_it(tmp_path: Path) -> None:
    plain = run_gpupipe(tmp_path, str(EXAMPLES / "plain_torch.py"), *WORDS)
    assert plain.stderr.count("StandInWarning: stand-in data, not LFW") == 1
    if not IS_FULL:
        return
    ddp = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    assert (
        "StandInWarning: "
        in run_gpupipe(tmp_path, *ddp, str(EXAMPLES / "torch_ddp.py"), *WORDS).stderr
    )
    shipped = Path(__file__).parents[3] / "configs" / "lfw.yaml"
    (tmp_path / "few.yaml").write_text(shipped.read_text().replace("2000", "8"))
    lightning = run_gpupipe(
        tmp_path, str(EXAMPLES / "lightning_lfw.py"), "few.yaml", "--batch_size", "4"
    )
    assert "stand-in data, not LFW" in lightning.stderr  # Lightning names no category
