"""gpupipe compare, as a user calls it."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.bench.compare import list_contestants
from gpupipe.bench.comparison import SCHEMA
from gpupipe.engines import registry
from helpers.forked_python import executable


def test_compare_prints_a_table_and_a_verdict_and_writes_json(config: Path, cli: Any) -> None:
    done = cli(
        config.parent,
        "compare",
        "config.yaml",
        "--cpu-workers",
        "1",
        "--repeats",
        "2",
        "--batches",
        "3",
        "--json",
        "out.json",
        "--out",
        "made here",
    )
    assert done.returncode == 0, done.stderr
    assert "report: made here/report.html" in done.stdout
    assert sorted(p.name for p in (config.parent / "made here").iterdir()) == [
        "rate.png",
        "rate.svg",
        "report.html",
        "results.json",
        "time.png",
        "time.svg",
    ]
    found = json.loads((config.parent / "out.json").read_text())
    assert found["schema"] == SCHEMA
    assert (
        found["command"]
        == "gpupipe compare config.yaml --cpu-workers 1 --repeats 2 --batches 3 --json "
        "out.json --out 'made here'"
    )
    assert (found["repeats"], found["contest"]["batches"], found["contest"]["cold"]) == (
        2,
        3,
        False,
    )
    assert (
        "<title>gpupipe compare: config</title>"
        in (config.parent / "made here" / "report.html").read_text()
    )
    sides = ["CPU engine", "DALI on CPU", "DataLoader, 1 worker"]
    assert [s["name"] for s in found["sides"]] == sides
    assert all(
        len(s["rounds"]) == 2 and s["rounds"][0]["images"] in range(12 * 2, 16 * 3 + 1)
        for s in found["sides"]
    )
    assert found["ratios_to"].startswith("DataLoader")
    assert "the CPU engine on cpu against torchvision" in done.stdout, "parity comes with it"
    assert any(
        words in done.stdout
        for words in ("times as many images as", "within the noise", "cannot be determined")
    )
    assert "round 2 of 2: DataLoader, 1 worker" in done.stderr


def test_ctrl_c_keeps_what_was_measured(config: Path) -> None:
    command = [
        executable(),
        "-m",
        "gpupipe",
        "compare",
        "config.yaml",
        "--cpu-workers",
        "1",
        "--repeats",
        "50",
        "--batches",
        "2",
        "--json",
        "out.json",
    ]
    process = subprocess.Popen(
        command, cwd=config.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr
        while "round 2 of 50: DALI" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "DALI on CPU" in out
    found = json.loads((config.parent / "out.json").read_text())
    assert found["interrupted"]
    rounds = [len(side["rounds"]) for side in found["sides"]]
    assert rounds[0] == 2
    assert rounds in ([2, 1, 1], [2, 2, 1], [2, 2, 2]), "turns may end before the signal comes"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cpu-workers", "two"], "'two' is not a number"),
        (["--cores", "100000"], "100000, but this process may use"),
    ],
)
def test_usage_mistakes(config: Path, words: list[str], said: str, cli: Any) -> None:
    done = cli(config.parent, "compare", "config.yaml", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_only_what_is_not_installed_is_called_so() -> None:
    checked = configs.read(
        {"data": {"source": "folder", "root": "/nowhere"}, "pipeline": ["decode"]}
    )
    notes = " ".join(list_contestants(checked, [1], 0, ["cpu", "dataloader"])[1])
    for name in registry.list_automatic():
        is_noted = f"{registry.get_title(name)} is not installed" in notes
        assert is_noted != registry.is_installed(name), notes


def test_sides_depend_on_what_there_is() -> None:
    checked = configs.read(
        {"data": {"source": "folder", "root": "/nowhere"}, "pipeline": ["decode"]}
    )
    names = {
        (gpus, len(engines)): [s.name for s in list_contestants(checked, [0, 2], gpus, engines)[0]]
        for gpus in (0, 1)
        for engines in (["cpu", "dali", "dataloader"], ["dataloader"])
    }
    loaders = ["DataLoader, 0 workers", "DataLoader, 2 workers"]
    assert names[1, 3] == ["CPU engine", "DALI on GPU", "DALI on CPU", *loaders]
    assert names[0, 3] == ["CPU engine", "DALI on CPU", *loaders]
    assert names[0, 1] == names[1, 1] == loaders
