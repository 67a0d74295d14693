"""The position of a sampler: resume, also with another number of ranks, and set_epoch()."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpupipe.errors import StateError, shown
from gpupipe.sampling.epochs import count_earlier
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import ALL_ONCE, Selection
from helpers.epochs_of_ranks import (
    DROP,
    PAD,
    PARTIAL,
    Case,
    cases,
    chosen_cases,
    delivered,
    in_order,
    steps_of,
)


@given(cases(), st.data())
def test_resume_goes_on_as_if_nothing_had_happened(case: Case, data: st.DataObject) -> None:
    samplers = case.ranks()
    steps = steps_of(samplers)
    cut = data.draw(st.integers(0, len(steps) - 1), "the last step before the cut")
    states = [s.state_after(p) for s, p in zip(samplers, steps[cut], strict=True)]
    assert all(state == states[0] for state in states), "any rank's state is everyone's"
    again = case.ranks()
    for sampler in again:
        sampler.load_state(states[0])
    rest = steps[cut + 1 :] or steps_of(samplers)
    resumed = steps_of(again)
    assert len(resumed) == len(rest)
    for old, new in zip(rest, resumed, strict=True):
        for a, b in zip(old, new, strict=True):
            assert (a.epoch, a.end, a.last, a.ids.tolist()) == (
                b.epoch,
                b.end,
                b.last,
                b.ids.tolist(),
            )
    assert all(
        (p.ids == q.ids).all() for p, q in zip(samplers[-1].begin(), again[-1].begin(), strict=True)
    ), "and so does the epoch after it"


@given(cases(PARTIAL), st.integers(1, 9), st.integers(1, 9), st.data())
def test_resume_with_another_batch_size_and_world_size_loses_and_repeats_nothing(
    case: Case, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    samplers = case.ranks()
    steps = steps_of(samplers)
    cut = data.draw(st.integers(0, len(steps) - 1), "the last step before the cut")
    state = samplers[0].state_after(steps[cut][0])
    done = delivered(steps[: cut + 1])
    left = case.count - len(done) or case.count
    assume(
        Case(left, batch_size, world_size, PARTIAL).possible
        and Case(case.count, batch_size, world_size, PARTIAL).possible
    )
    others = case.ranks(batch_size=batch_size, world_size=world_size)
    for sampler in others:
        sampler.load_state(state)
    rest = delivered(steps_of(others))
    if len(done) == case.count:
        assert rest == others[0].order(1).tolist()
    else:
        assert done + rest == others[0].order(0).tolist()
    assert sorted(delivered(steps_of(others))) == list(range(case.count)), (
        "the epoch after it is whole"
    )


@given(cases(DROP, PAD), st.integers(1, 9), st.integers(1, 9), st.data())
def test_resume_with_another_layout_keeps_what_drop_and_pad_promise(
    case: Case, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    assume(Case(case.count, batch_size, world_size, case.last_batch).possible)
    samplers = case.ranks()
    steps = steps_of(samplers)
    cut = data.draw(st.integers(0, len(steps) - 1), "the last step before the cut")
    others = case.ranks(batch_size=batch_size, world_size=world_size)
    for sampler in others:
        sampler.load_state(samplers[0].state_after(steps[cut][0]))
    done, epoch = delivered(steps[: cut + 1]), others[0].epoch
    resumed = steps_of(others)
    rest = delivered(resumed)
    assert {len(p.ids) for step in resumed for p in step} == {batch_size}
    everyone = batch_size * world_size
    if epoch == 0:
        order = others[0].order(0).tolist()
        assert case.last_batch == PAD or case.count - len(done) - len(rest) < everyone
        assert (done + rest)[: case.count] == order[: len(done + rest)]
    else:
        assert steps[cut][0].last or case.count - len(done) < everyone


def test_state_before_anything_was_delivered() -> None:
    sampler = Sampler(10, 3, shuffle=True, seed=8, last_batch=PARTIAL)
    assert sampler.state() == {"seed": 8, "shuffle": True, "epoch": 0, "position": 0}
    sampler.set_epoch(4)
    other = Sampler(10, 3, shuffle=True, seed=8, last_batch=PARTIAL)
    other.load_state(sampler.state())
    assert [p.epoch for p in other.begin()] == [4, 4, 4, 4]


def half_way() -> tuple[Sampler, list[Plan]]:
    """A sampler that has loaded the state after the second of four batches of epoch 3, and the two
    that follow.
    """
    first = Sampler(10, 3, shuffle=True, seed=8, last_batch=PARTIAL)
    first.set_epoch(3)
    plans = list(first.begin())
    second = Sampler(10, 3, shuffle=True, seed=8, last_batch=PARTIAL)
    second.load_state(first.state_after(plans[1]))
    return second, plans[2:]


def test_after_the_last_batch_the_state_is_that_of_the_next_epoch() -> None:
    sampler, plans = half_way()
    assert sampler.state_after(plans[-1]) == {"seed": 8, "shuffle": True, "epoch": 4, "position": 0}
    assert sampler.state_after(plans[0])["position"] == 9


def test_set_epoch_to_the_epoch_of_a_loaded_state_keeps_its_position() -> None:
    sampler, rest = half_way()
    sampler.set_epoch(3)
    assert (sampler.epoch, sampler.position) == (3, 6)
    assert [p.ids.tolist() for p in sampler.begin()] == [p.ids.tolist() for p in rest]
    assert (sampler.epoch, sampler.position) == (4, 0)


def test_set_epoch_to_another_epoch_drops_the_position() -> None:
    sampler, _ = half_way()
    sampler.set_epoch(2)
    assert sampler.position == 0
    assert sum(len(p.ids) for p in sampler.begin()) == 10


def test_len_is_of_a_whole_epoch_also_after_a_resume() -> None:
    sampler, rest = half_way()
    assert len(sampler) == 4
    assert len(list(sampler.begin())) == len(rest) == 2
    assert len(list(sampler.begin())) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"seed": 9},
            "the state was made with seed 9, and this loader has seed 8: set loader.seed=9, or "
            "strict=False",
        ),
        (
            {"shuffle": False},
            "the state was made with shuffle false, and this loader has shuffle true: set "
            "loader.shuffle=false, or strict=False",
        ),
        (
            {"position": 11},
            "the state is at sample 11 of epoch 3, and an epoch of this data set has 10",
        ),
        (
            {"position": -1},
            "the state is at sample -1 of epoch 3, and an epoch of this data set has 10",
        ),
        (
            {"position": "6"},
            "the state is at sample '6' of epoch 3, and an epoch of this data set has 10",
        ),
        (
            {"epoch": 1.5},
            "the state is at sample 6 of epoch 1.5, and an epoch of this data set has 10",
        ),
    ],
    ids=str,
)
def test_states_that_are_refused(change: dict[str, Any], message: str) -> None:
    sampler = Sampler(10, 3, shuffle=True, seed=8, last_batch=PARTIAL)
    with pytest.raises(StateError) as error:
        sampler.load_state({"seed": 8, "shuffle": True, "epoch": 3, "position": 6, **change})
    assert str(error.value) == message
    assert (sampler.epoch, sampler.position) == (0, 0), "a refused state changes nothing"


def test_a_rest_that_cannot_be_dealt_out_is_refused_with_advice() -> None:
    sampler = Sampler(10, 3, shuffle=True, seed=8, last_batch=PARTIAL, world_size=4)
    with pytest.raises(
        StateError,
        match=r"1 sample cannot give each of 4 ranks one: use fewer ranks, or .* leave it out: "
        r"sampler\.set_epoch\(1\)",
    ):
        sampler.load_state({"seed": 8, "shuffle": True, "epoch": 0, "position": 9})


@given(chosen_cases(PARTIAL), st.integers(1, 9), st.integers(1, 9), st.data())
def test_resume_with_repeats_weights_and_sizes_goes_on_in_the_order(
    case: Case, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    """Also with another batch size and number of ranks: ids and repeats follow one another."""
    samplers = case.ranks()
    steps = steps_of(samplers)
    cut = data.draw(st.integers(0, len(steps) - 1), "the last step before the cut")
    states = [s.state_after(p) for s, p in zip(samplers, steps[cut], strict=True)]
    assert all(state == states[0] for state in states), "any rank's state is everyone's"
    done = [i for step in steps[: cut + 1] for i in in_order(step, case)]
    rest = replace(case, batch_size=batch_size, world_size=world_size)
    left = replace(rest, count=case.total - len(done) or case.total, selection=ALL_ONCE)
    assume(rest.possible and left.possible)
    others = rest.ranks()
    for sampler in others:
        sampler.load_state(states[0])
    epoch, order = others[0].epoch, others[0].order(others[0].epoch).tolist()
    begin = 0 if epoch else len(done)
    resumed = steps_of(others)
    assert [i for step in resumed for i in in_order(step, rest)] == order[begin:]
    assert epoch or order[:begin] == done
    if case.selection.may_repeat:
        earlier = count_earlier(np.array(order)).tolist()
        assert [n for s in resumed for n in in_order(s, rest, "repeats")] == earlier[begin:]


SETTINGS: dict[str, Any] = {
    "repeats": 3,
    "weights": "class_balanced",
    "epoch_size": 20,
    "subset": 0.5,
}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_state_of_other_settings_is_refused_both_ways(key: str) -> None:
    value = SETTINGS[key]
    changed = Selection(settings={key: value})
    with_it, without = (
        Sampler(10, 3, shuffle=True, seed=8, last_batch=PARTIAL, selection=selection)
        for selection in (changed, ALL_ONCE)
    )
    default = "1" if key == "repeats" else "null"
    assert with_it.state()[key] == value
    assert without.state() == {"seed": 8, "shuffle": True, "epoch": 0, "position": 0}
    for sampler, other, theirs, ours in (
        (without, with_it, shown(value), default),
        (with_it, without, default, shown(value)),
    ):
        with pytest.raises(StateError) as error:
            sampler.load_state(other.state())
        assert str(error.value) == (
            f"the state was made with {key} {theirs}, and this loader has {key} {ours}: set "
            f"loader.{key}={theirs}, or strict=False"
        )
        sampler.load_state(other.state() | {"epoch": 2}, strict=False)
        assert sampler.epoch == 2


def test_a_subset_from_another_file_is_refused() -> None:
    one, other = (
        Sampler(9, 3, shuffle=True, seed=8, last_batch=PARTIAL, selection=Selection(settings=s))
        for s in ({"subset": "3 ids, 0a"}, {"subset": "4 ids, 0b"})
    )
    with pytest.raises(StateError, match=r"set loader\.subset to the file with these ids, or"):
        one.load_state(other.state())


def test_a_position_beyond_a_shorter_epoch_ends_it_if_that_is_accepted() -> None:
    shorter = Selection(epoch_size=6, settings={"epoch_size": 6})
    sampler = Sampler(10, 3, shuffle=True, seed=8, last_batch=PARTIAL, selection=shorter)
    sampler.load_state({"seed": 8, "shuffle": True, "epoch": 0, "position": 9}, strict=False)
    assert (sampler.epoch, sampler.position) == (1, 0)
