"""gpupipe tune: what it tries, and that it finds what must be faster."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpupipe import config as configs
from gpupipe.bench import measure, tune
from gpupipe.bench.comparison import Contestant
from gpupipe.bench.contestant import Contest, ContestOutcome, run
from gpupipe.bench.tune import Tuner, TuneResult, describe_tuning
from gpupipe.cli.app import main
from gpupipe.cli.console import core_numbers
from gpupipe.config import LoaderConfig
from helpers.made_comparison import result
from helpers.plugin import install

WAIT = '''
import os
from pathlib import Path

from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Step


class Wait(Step):
    """Counts as a wait for another machine: each process appends a byte to a file of its own."""

    folder: str

    def infer_spec(self, given):
        return check_decoded(given)

    def torch(self, image, p):
        with Path(self.folder, str(os.getpid())).open("ab") as file:
            file.write(b".")
        return image
'''


class WaitClock:
    """The seconds that the waits of the step `wait` would take, so that load changes nothing.

    Waits of one process follow each other; waits of different processes overlap.
    """

    SECONDS = 0.02

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = 0.0
        folder.mkdir()

    def now(self) -> float:
        waits = (file.stat().st_size for file in self._folder.iterdir())
        return self._before + self.SECONDS * max(waits, default=0)

    def trial(self, contestant: Contestant, contest: Contest) -> ContestOutcome:
        """Run a trial in this process, where everything is imported already."""
        self._before = self.now()
        for file in self._folder.iterdir():
            file.unlink()
        return run(replace(contest, changes=contestant.changes))


@pytest.mark.filterwarnings("ignore:loader.workers")
def test_it_finds_that_more_workers_wait_at_the_same_time(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "wait", WAIT, wait="Wait"))
    clock = WaitClock(tmp_path / "waits")
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=clock.now))
    monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=clock.now))
    words = (
        f"data={{source: folder, root: {faces}}}",
        f"pipeline=[decode, wait: {{folder: '{tmp_path / 'waits'}'}}]",
        "engine=dataloader",
        "workers=0",
        "batch_size=8",
        "device=cpu",
    )
    checked = configs.read("lfw", words)
    contest = Contest("lfw", words, {}, core_numbers(None), 0, 2, False)
    found = Tuner(contest, checked.loader, 1, 16, lambda what, done, total: None, clock.trial).run(
        {"workers": [0, 3]}
    )
    assert found.changes == {"workers": 3}
    assert found.is_certain
    assert found.gain
    assert found.gain.value > 2, "three times, but for what was made before"
    assert [[r.contestant.name for r in setting] for setting in found.trials] == [
        ["workers=0", "workers=3"]
    ]
    outcomes = [o for setting in found.trials for result in setting for o in result.outcomes]
    assert all(o.batches >= 3 * o.batches_ahead for o in outcomes), "not what was made before"
    printed = describe_tuning(found, 16)
    assert yaml.safe_load("\n".join(printed[printed.index("") :])) == {"loader": {"workers": 3}}


def test_too_little_time_is_said(faces: Path, tmp_path: Path, cli: Any) -> None:
    words = [f"data={{source: folder, root: {faces}}}", "device=cpu", "batch_size=8"]
    done: subprocess.CompletedProcess[str] = cli(
        tmp_path, "tune", "lfw", *words, "--seconds", "1", "--json", "out.json"
    )
    assert done.returncode == 0, done.stderr
    assert "faster" in done.stdout
    assert "cannot be determined" in done.stdout
    assert "Nothing" not in done.stdout
    assert "(threads, prefetch, data.cache_decoded, batch_size)" in done.stdout
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["untried"] == ["threads", "prefetch", "data.cache_decoded", "batch_size"]
    assert out["enough_seconds"] > 1
    assert f"--seconds {out['enough_seconds']} tries the first" in done.stdout


@pytest.mark.parametrize("seconds", [40.0, 150.0])
def test_as_many_seconds_as_it_asks_for_are_enough(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine where a trial takes 12 s."""
    now = 0.0

    def trial(contestant: Contestant, contest: Contest) -> ContestOutcome:
        nonlocal now
        now += 12
        return ContestOutcome("dali", "cpu", "2 threads", 1000, 10, 1.0, 0.1, 1.0, 1)

    monkeypatch.setattr(tune.time, "monotonic", lambda: now)
    contest = Contest("lfw", (), {}, (0,), 0, 2, False)
    tuner = Tuner(
        contest, LoaderConfig(batch_size=64), 2, seconds, lambda what, done, total: None, trial
    )
    found = tuner.run({"threads": [1, 2, 3]})
    assert bool(found.trials) is (seconds == 150)
    assert found.enough_seconds == (None if found.trials else 150)


def test_a_setting_that_is_not_tuned_is_a_usage_mistake(
    faces: Path, tmp_path: Path, cli: Any
) -> None:
    done = cli(
        tmp_path,
        "tune",
        "lfw",
        f"data={{source: folder, root: {faces}}}",
        "device=cpu",
        "--keep",
        "batch_sise",
    )
    assert done.returncode == 2
    assert "'batch_sise' is not among what is tuned; did you mean 'batch_size'?" in done.stderr


@pytest.mark.parametrize(("given", "best", "certain"), [
    ((100, 101, 99), (130, 131, 128), True),
    ((100, 101, 99), (101, 99, 102), False),
    ((130, 131, 128), (100, 101, 99), False),
])  # fmt: skip
def test_a_gain_must_be_beyond_noise(
    given: tuple[float, ...], best: tuple[float, ...], certain: bool
) -> None:
    assert TuneResult(result("as given", *given), best=result("best", *best)).is_certain is certain


def test_a_gain_is_of_paired_rounds() -> None:
    """Ctrl-C between the two of a round leaves the first alone."""
    found = TuneResult(result("as given", 100, 200, 400, 50), best=result("best", 200, 400, 800))
    assert found.gain is not None
    assert found.gain.value == pytest.approx(2)


def test_why_nothing_was_tried() -> None:
    assert (
        "--keep leaves none to try" in describe_tuning(TuneResult(result("as given", 100)), 16)[0]
    )
    found = TuneResult(
        result("as given", 100),
        trials=[[result("a", 100)]],
        changes={"threads": 3},
        interrupted=True,
    )
    assert "Whether threads=3 is faster cannot be determined" in describe_tuning(found, 16)[0]


def test_a_gain_that_may_be_anything_is_not_reported() -> None:
    found = TuneResult(
        result("as given", 100, 10, 400),
        trials=[[result("a", 100)]],
        changes={"threads": 3},
        best=result("best", 100, 700, 90),
    )
    said = " ".join(describe_tuning(found, 16))
    assert "cannot be determined" in said
    assert "--seconds" in said
    assert "keep the settings" not in said


def test_a_setting_that_is_kept_is_not_tried(faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def run_none(tuner: Tuner, choices: dict[str, list[Any]]) -> TuneResult:
        tried.extend(choices)
        return TuneResult(result("as given", 100))

    monkeypatch.setattr(Tuner, "run", run_none)
    words = ["tune", "lfw", f"data={{source: folder, root: {faces}}}", "device=cpu"]
    words += ["engine=dataloader", "--keep", "prefetch", "--keep", "batch_size"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {*tried} - {"data.cache_decoded"} == {"workers"}
