"""What limits a loader, as its profile says it."""

from dataclasses import replace

import pytest

from gpupipe.bench import profile_report
from gpupipe.bench.profile import Profile, Stage
from gpupipe.bench.training import Training
from gpupipe.steps.decode import Decode


def profiled(
    read: float,
    decode: float,
    whole: float,
    busy: float,
    gpu: float | None = None,
    device: str = "cpu",
) -> Profile:
    """Rates in images a second; busy: the share of 4 cores."""
    stages = [
        Stage(n, [1 / r], [busy * 4 / r], [0.0])
        for n, r in (("read", read), ("decode", decode), ("to torch", whole))
    ]
    return Profile(
        {
            "engine": "dali",
            "device": device,
            "parallelism_with_unit": "4 threads",
            "parallelism": 4,
            "parallelism_setting": "threads",
        },
        4,
        stages,
        gpu,
    )


WAITS = Training("t", [50.0, 51.0], [100.0, 100.0])
DOES_NOT = Training("t", [99.0, 98.0], [100.0, 100.0])


@pytest.mark.parametrize(
    ("found", "threads", "trained", "resource", "said"),
    [
        (profiled(9000, 1000, 900, 0.95), 4, None, "CPU", "goes to 'decode'"),
        (profiled(9000, 1000, 900, 0.95), 4, WAITS, "CPU", "decode on a GPU"),
        (profiled(9000, 5000, 900, 0.95), 4, None, "CPU", "goes to 'to torch'"),
        (profiled(9000, 1000, 900, 0.95), 4, DOES_NOT, "training", "would change nothing"),
        (profiled(1000, 980, 950, 0.2), 4, None, "storage", "reading alone makes 1,000 images/s"),
        (profiled(9000, 1000, 900, 0.3, 0.97, "gpu:0"), 4, None, "GPU", "busy 97% of the time"),
        (profiled(9000, 1000, 900, 0.3), 2, None, "waiting", "loader.threads=4"),
        (profiled(9000, 1000, 900, 0.3), 4, None, "waiting", "gpupipe tune"),
    ],
)
def test_what_limits(
    found: Profile, threads: int, trained: Training | None, resource: str, said: str
) -> None:
    verdict = profile_report.find_limit(found, threads, trained, {"decode": Decode.speed_advice})
    assert verdict.resource == resource
    assert said in " ".join(verdict.sentences)


@pytest.mark.parametrize(("busy", "resource"), [(0.95, "CPU"), (0.3, "waiting")])
def test_an_engine_that_cannot_run_parts_of_its_work_says_so(busy: float, resource: str) -> None:
    whole = profiled(9000, 1000, 900, busy)
    found = replace(whole, stages=[Stage("batches", [1 / 900], [busy * 4 / 900], [0.0])])
    verdict = profile_report.find_limit(found, 4)
    assert verdict.resource == resource
    assert "reading alone" not in " ".join(verdict.sentences)
    assert "goes to" not in " ".join(verdict.sentences)
    assert "only whole batches are timed" in str(profile_report.profile_table(found).note)
    assert profile_report.profile_table(whole).note == ""


def test_costs_that_do_not_add_up_are_withheld_and_that_is_explained() -> None:
    found = profiled(9000, 700, 950, 0.95)  # decode alone takes 136% of the time, to torch -36%
    table = profile_report.profile_table(found)
    assert [str(column.header) for column in table.columns] == ["up to", "images/s"]
    assert "'to torch' saves 36% of the time" in table.note
    assert "more --repeats" in table.note
    sentences = " ".join(profile_report.find_limit(found, 4).sentences)
    assert "%, goes to" not in sentences
    assert "'gpupipe compare'" in sentences
    nearly = profile_report.profile_table(profiled(9000, 900, 950, 0.95))
    assert "Less than 0" in nearly.note
    assert len(nearly.columns) == 5


@pytest.mark.parametrize("trained", [None, WAITS, DOES_NOT])
def test_beside_other_work_no_limit_is_named(trained: Training | None) -> None:
    """Cores that are shared look like waiting, and fast training like a loader that is fast
    enough.
    """
    found = profiled(9000, 1000, 900, 0.3)
    found.stages[1].others[0] = 0.9
    verdict = profile_report.find_limit(found, 4, trained)
    assert verdict.resource == "unknown"
    assert "cannot be determined" in " ".join(verdict.sentences)
    assert "To change that" not in " ".join(verdict.sentences)


def test_waiting_that_may_be_anything_is_not_told() -> None:
    wild = Training("t", [50.0, 900.0, 3.0], [100.0, 40.0, 90.0])
    said = " ".join(profile_report.describe_training(wild, None))
    assert "Waiting for data: cannot be determined" in said
    assert "More --repeats or --repeat-seconds" in said
    fast_once = Training("t", [990.0, 95.0, 99.0], [100.0, 900.0, 10.0])
    assert fast_once.waiting.value < 0.05
    found = profiled(9000, 1000, 900, 0.95)
    assert profile_report.find_limit(found, 4, fast_once).resource == "CPU"
