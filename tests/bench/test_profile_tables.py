"""The lines that gpupipe tune prints."""

from __future__ import annotations

from gpupipe.bench.profile_tables import describe_tuning
from gpupipe.bench.tune import TuneResult
from helpers.made_comparison import result


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
