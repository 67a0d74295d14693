"""How long the turns of `gpupipe try` are; tests/cli/test_trying.py runs them."""

from pathlib import Path

import numpy as np
import pytest

from gpupipe import config as configs
from gpupipe.bench import first_look
from gpupipe.bench.comparison import Contestant, Result, describe_verdict
from gpupipe.bench.contestant import Contest, ContestOutcome


def test_a_turn_has_as_many_batches_as_a_contestant_makes_in_two_seconds() -> None:
    contest = Contest("train.yaml", (), {}, [0], 12, 2, cold=False)
    result = Result(Contestant("DataLoader", {}))
    assert first_look._set_batches(contest, result).batches == 12
    for seconds, batches in ((6.0, 4), (0.12, 200), (600.0, 2)):
        result.outcomes.append(ContestOutcome("x", "cpu", "", 384, 12, seconds, 0.1, 0.1, 1))
        assert first_look._set_batches(contest, result).batches == batches


@pytest.mark.parametrize("factor", [1.0, 9.0], ids=["alike", "vague"])
def test_the_verdict_names_no_option_of_another_command(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight workers make more batches ahead than the first round has at least."""
    rounds: list[ContestOutcome] = []

    def run_contest(contestant: Contestant, contest: Contest) -> ContestOutcome:
        batches = max(contest.batches, 16 * contest.times_ahead)
        seconds = 1.0 if len(rounds) % 4 else factor
        rounds.append(
            ContestOutcome("x", "cpu", "", batches, batches, seconds, 0.1, 0.1, 1, batches_ahead=16)
        )
        return rounds[-1]

    monkeypatch.setattr(first_look, "run_contest", run_contest)
    np.save(tmp_path / "x.npy", np.zeros((8, 3, 4, 4), np.uint8))
    data = {"source": "numpy", "files": str(tmp_path / "x.npy")}
    config = configs.read({"data": data, "pipeline": [], "loader": {"device": "cpu"}})
    comparison = first_look.compare_within(config, "x.yaml", [0], 0.0, lambda *_: None)
    (sentence,) = describe_verdict(comparison, "Advice.")
    assert "--" not in sentence
    assert ("Advice." in sentence) == (factor > 1)
