"""The steps of the batch stage and what they draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batch_stage.mixing_cases import ids, stage_of
from gpupipe.batch_stage.batch_step import BatchStep
from gpupipe.batch_stage.stage import BatchEntry, BatchStage
from gpupipe.batch_stage.steps.mixup import Mixup
from gpupipe.errors import StepError


def entry_of(step: BatchStep, key: str = "mixup") -> BatchEntry:
    return BatchEntry("mixup", key, step, "c.yaml:3", {"image": "CHW"})


def test_draws_are_those_of_seed_epoch_key_and_samples() -> None:
    entry = entry_of(Mixup())
    drawn = entry.parameters(1, 2, ids(4))
    assert 0 <= drawn["lam"] <= 1
    assert entry.parameters(1, 2, ids(4)) == drawn
    others = [
        entry.parameters(2, 2, ids(4)),
        entry.parameters(1, 3, ids(4)),
        entry.parameters(1, 2, ids(4, first=1)),
        entry_of(Mixup(), "mixup_2").parameters(1, 2, ids(4)),
    ]
    assert len({drawn["lam"], *(other["lam"] for other in others)}) == 5


def test_a_sample_is_never_mixed_with_itself() -> None:
    assert entry_of(Mixup()).parameters(0, 0, ids(4))["shift"] == 1
    twice = np.array([0, 0, 1, 1])
    assert entry_of(Mixup()).parameters(0, 0, twice)["shift"] == 2


class Wrong(Mixup):
    """Draws for two batches at once."""

    def sample(self, u: Any) -> dict[str, Any]:
        return {"lam": np.zeros(2)}


class Broken(Mixup):
    """Cannot draw."""

    def sample(self, u: Any) -> dict[str, Any]:
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("step", "words"),
    [(Wrong(), r"made 'lam' of shape \(2,\) for one batch"), (Broken(), r"sample\(\)[\s\S]*boom")],
)
def test_a_step_that_draws_wrongly_is_named_with_its_place(step: BatchStep, words: str) -> None:
    with pytest.raises(StepError, match=words) as error:
        entry_of(step).parameters(0, 0, ids(2))
    assert "c.yaml:3" in str(error.value)


def test_a_stage_without_steps_has_no_fingerprint() -> None:
    assert BatchStage().fingerprint == ""
    assert BatchStage().num_classes is None
    assert BatchStage().as_steps() == []


def test_the_stage_of_an_epoch_is_the_last_that_has_begun() -> None:
    first, second, third = (stage_of({"mixup": {"alpha": a}}) for a in (0.1, 0.2, 0.3))
    stage = BatchStage(first.entries, first.main, {3: second, 5: third})
    assert stage.at_epoch(0).as_steps() == first.as_steps()
    assert not stage.at_epoch(2).later
    assert [stage.at_epoch(epoch) for epoch in (3, 4, 5, 90)] == [second, second, third, third]
    assert first.at_epoch(7) is first
    assert len({stage.fingerprint, first.fingerprint, second.fingerprint}) == 3


def test_the_number_of_classes_is_that_of_the_step_that_has_one() -> None:
    assert stage_of("mixup", {"one_hot": {"num_classes": 9}}).num_classes == 9
    assert stage_of("mixup").num_classes is None
