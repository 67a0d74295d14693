"""How long the turns of `gpupipe try` are; tests/cli/test_trying.py runs them."""

from __future__ import annotations

from gpupipe.bench import first_look
from gpupipe.bench.comparison import Contestant, Result
from gpupipe.bench.contestant import Contest, ContestOutcome


def test_a_turn_has_as_many_batches_as_a_contestant_makes_in_two_seconds() -> None:
    contest = Contest("train.yaml", (), {}, [0], 12, 2, cold=False)
    result = Result(Contestant("DataLoader", {}))
    assert first_look._set_batches(contest, result).batches == 12
    for seconds, batches in ((6.0, 4), (0.12, 200), (600.0, 2)):
        result.outcomes.append(ContestOutcome("x", "cpu", "", 384, 12, seconds, 0.1, 0.1, 1))
        assert first_look._set_batches(contest, result).batches == batches
