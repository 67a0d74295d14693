"""How the samples of an epoch are divided into batches, over all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpupipe.errors import ConfigError
from gpupipe.sampling.sampler import Sampler
from helpers.epochs_of_ranks import DROP, PAD, PARTIAL, Case, cases, delivered, steps_of


@given(cases())
@example(Case(9, 2, 4, PARTIAL))
@example(Case(7, 3, 6, PARTIAL))
@example(Case(1, 9, 9, PAD))
def test_every_epoch(case: Case) -> None:
    """The laws that hold whatever happens to the remainder."""
    samplers = case.ranks()
    steps = steps_of(samplers)
    assert {len(s) for s in samplers} == {len(steps)}
    sizes = [len(plan.ids) for step in steps for plan in step]
    assert min(sizes) >= 1
    assert max(sizes) <= case.batch_size
    assert all(plan.ids.dtype == np.int64 for step in steps for plan in step)
    assert [step[0].last for step in steps] == [False] * (len(steps) - 1) + [True]
    for step in steps:
        assert len({(p.epoch, p.end, p.last) for p in step}) == 1, (
            "the ranks agree on where they are"
        )
        assert case.last_batch == PAD or len({int(i) for p in step for i in p.ids}) == sum(
            len(p.ids) for p in step
        ), "disjoint within a step"
    assert [step[0].end for step in steps] == np.cumsum(
        [sum(len(p.ids) for p in step) for step in steps]
    ).tolist()


@given(cases(PARTIAL))
@example(Case(9, 2, 4, PARTIAL))
def test_partial_delivers_every_sample_once(case: Case) -> None:
    steps = steps_of(case.ranks())
    assert sorted(delivered(steps)) == list(range(case.count))
    assert len(steps) == -(-case.count // case.everyone)
    assert all(len(p.ids) == case.batch_size for step in steps[:-2] for p in step), (
        "only the last two steps may be smaller"
    )
    last = [len(p.ids) for p in steps[-1]]
    assert max(last) - min(last) <= 1


@given(cases(DROP))
def test_drop_delivers_full_batches_only(case: Case) -> None:
    samplers = case.ranks()
    steps = steps_of(samplers)
    assert {len(p.ids) for step in steps for p in step} == {case.batch_size}
    whole = case.count // case.everyone * case.everyone
    assert delivered(steps) == samplers[0].order(0)[:whole].tolist()


@given(cases(PAD))
def test_pad_fills_up_with_samples_from_the_start(case: Case) -> None:
    samplers = case.ranks()
    steps = steps_of(samplers)
    assert {len(p.ids) for step in steps for p in step} == {case.batch_size}
    order = samplers[0].order(0).tolist()
    whole = -(-case.count // case.everyone) * case.everyone
    assert delivered(steps) == (order * whole)[:whole]


def test_drop_leaves_a_rest_out_that_makes_no_full_batch() -> None:
    sampler = Sampler(10, 3, shuffle=True, seed=8, last_batch=DROP, world_size=2)
    sampler.load_state({"seed": 8, "shuffle": True, "epoch": 0, "position": 6})
    assert (sampler.epoch, sampler.position) == (1, 0)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case(3, 2, 4, PARTIAL),
            "3 samples cannot give each of 4 ranks one: use fewer ranks, or set last_batch: pad",
        ),
        (
            Case(1, 2, 2, PARTIAL),
            "1 sample cannot give each of 2 ranks one: use fewer ranks, or set last_batch: pad",
        ),
        (
            Case(5, 1, 2, PARTIAL),
            "5 samples one at a time cannot give 2 ranks equal steps: set batch_size above 1, or "
            "last_batch: drop or pad",
        ),
        (
            Case(5, 3, 2, DROP),
            "5 samples cannot give 2 ranks a full batch of 3 each: make batch_size smaller, or "
            "set last_batch: partial",
        ),
        (
            Case(5, 6, 1, DROP),
            "5 samples cannot give 1 rank a full batch of 6 each: make batch_size smaller, or "
            "set last_batch: partial",
        ),
        (Case(0, 1, 1, PARTIAL), "there are no samples"),
        (Case(0, 1, 1, DROP), "there are no samples"),
        (Case(0, 1, 1, PAD), "there are no samples"),
    ],
    ids=str,
)
def test_what_cannot_be_dealt_out_is_refused_with_advice(case: Case, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        case.ranks()
    assert str(error.value) == f"loader: {message}"


@given(
    st.builds(
        Case,
        st.integers(0, 40),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from([PARTIAL, DROP, PAD]),
    )
)
def test_nothing_else_is_refused(case: Case) -> None:
    if case.possible:
        case.ranks()
    else:
        with pytest.raises(ConfigError):
            case.ranks()


def test_the_advice_helps() -> None:
    """What each message says to do makes the case possible."""
    assert steps_of(Case(3, 2, 3, PARTIAL).ranks())
    assert steps_of(Case(3, 2, 4, PAD).ranks())
    assert steps_of(Case(5, 2, 2, PARTIAL).ranks())
    assert steps_of(Case(5, 2, 2, DROP).ranks())


def test_a_rank_that_would_run_dry_gets_a_sample_from_its_batch_before() -> None:
    """9 samples on 4 ranks, two at a time: a full step of 8 would leave one for four ranks."""
    sizes = [[len(p.ids) for p in step] for step in steps_of(Case(9, 2, 4, PARTIAL).ranks())]
    assert sizes == [[2, 1, 1, 1], [1, 1, 1, 1]]
