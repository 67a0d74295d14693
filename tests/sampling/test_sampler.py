from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpupipe.errors import ConfigError, StateError
from gpupipe.sampling import draws
from gpupipe.sampling.sampler import Plan, Sampler

PARTIAL, DROP, PAD = "partial", "drop", "pad"


@dataclass(frozen=True)
class Case:
    count: int
    batch_size: int
    world_size: int
    last_batch: str
    shuffle: bool = True
    seed: int = 5

    def ranks(self, **changes: Any) -> list[Sampler]:
        options = {**vars(self), **changes}
        count, batch_size = options.pop("count"), options.pop("batch_size")
        return [
            Sampler(count, batch_size, rank=rank, **options)
            for rank in range(options["world_size"])
        ]

    @property
    def everyone(self) -> int:
        return self.batch_size * self.world_size

    @property
    def possible(self) -> bool:
        if self.last_batch == DROP:
            return self.count >= self.everyone
        if self.last_batch == PAD:
            return self.count > 0
        return self.count >= self.world_size and (
            self.batch_size > 1 or self.count % self.world_size == 0
        )


def cases(*last_batch: str) -> st.SearchStrategy[Case]:
    of = st.sampled_from(last_batch or (PARTIAL, DROP, PAD))
    return st.builds(
        Case, st.integers(1, 90), st.integers(1, 9), st.integers(1, 9), of, st.booleans()
    ).filter(lambda c: c.possible)


def steps_of(samplers: list[Sampler]) -> list[list[Plan]]:
    """The plans of every rank, step by step."""
    epochs = [list(s.begin()) for s in samplers]
    assert len({len(e) for e in epochs}) == 1, "equal steps on all ranks"
    return [list(step) for step in zip(*epochs, strict=True)]


def delivered(steps: list[list[Plan]]) -> list[int]:
    """The ids in the order of the steps, and in a step of the ranks."""
    return [int(i) for step in steps for plan in step for i in plan.ids]


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


@given(cases(), st.integers(0, 4), st.integers(0, 2**63 - 1))
def test_the_order_does_not_depend_on_how_it_is_dealt_out(
    case: Case, epoch: int, seed: int
) -> None:
    alone = Sampler(case.count, 1, shuffle=case.shuffle, seed=seed, last_batch=PARTIAL)
    alone.set_epoch(epoch)
    samplers = case.ranks(seed=seed)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    together = delivered(steps_of(samplers))[: case.count]
    assert together == [int(p.ids[0]) for p in alone.begin()][: len(together)]
    expected = draws.permutation(seed, epoch, case.count) if case.shuffle else np.arange(case.count)
    assert (samplers[0].order(epoch) == expected).all()


@given(st.integers(20, 60), st.lists(st.integers(0, 10**6), min_size=2, max_size=5, unique=True))
def test_another_order_each_epoch_and_each_seed(count: int, numbers: list[int]) -> None:
    by_seed = [
        Sampler(count, 4, shuffle=True, seed=n, last_batch=PARTIAL).order(0) for n in numbers
    ]
    by_epoch = [
        Sampler(count, 4, shuffle=True, seed=1, last_batch=PARTIAL).order(n) for n in numbers
    ]
    for orders in (by_seed, by_epoch):
        assert len({tuple(o.tolist()) for o in orders}) == len(numbers)
        assert all(sorted(o.tolist()) == list(range(count)) for o in orders)


@given(cases(), st.integers(0, 3))
def test_set_epoch_is_the_iteration_of_that_number(case: Case, epoch: int) -> None:
    (counted, *_), (told, *_) = case.ranks(), case.ranks()
    for _ in range(epoch):
        list(counted.begin())
    told.set_epoch(epoch)
    assert counted.epoch == told.epoch == epoch
    for a, b in zip(counted.begin(), told.begin(), strict=True):
        assert (a.epoch, a.end, a.last) == (epoch, b.end, b.last)
        assert (a.ids == b.ids).all()


def test_an_iteration_that_is_broken_off_does_not_hold_up_the_next() -> None:
    sampler = Sampler(10, 3, shuffle=True, seed=0, last_batch=PARTIAL)
    next(sampler.begin())
    plans = list(sampler.begin())
    assert {p.epoch for p in plans} == {1}
    assert sum(len(p.ids) for p in plans) == 10


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
            "the state stands at sample 11 of epoch 3, and an epoch of this data set has 10",
        ),
        (
            {"position": -1},
            "the state stands at sample -1 of epoch 3, and an epoch of this data set has 10",
        ),
        (
            {"position": "6"},
            "the state stands at sample '6' of epoch 3, and an epoch of this data set has 10",
        ),
        (
            {"epoch": 1.5},
            "the state stands at sample 6 of epoch 1.5, and an epoch of this data set has 10",
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


def test_a_large_epoch_is_planned_lazily() -> None:
    plans = Sampler(
        2_000_000, 256, shuffle=True, seed=0, last_batch=PARTIAL, rank=3, world_size=8
    ).begin()
    first, second = next(plans), next(plans)
    assert (first.end, second.end) == (2048, 4096)


def test_consecutive_epochs_put_every_sample_first_equally_often() -> None:
    sampler = Sampler(10, 1, shuffle=True, seed=3, last_batch=PARTIAL)
    firsts = np.bincount([int(sampler.order(e)[0]) for e in range(2000)], minlength=10)
    assert ((firsts - 200) ** 2 / 200).sum() < 34, "9 degrees of freedom: 9 +- 4"
    lasts = [int(sampler.order(e)[-1]) for e in range(2000)]
    assert abs(np.mean([a == b for a, b in pairwise(lasts)]) - 0.1) < 0.035


def test_golden_batches() -> None:
    """No release may change these: a checkpointed run must go on with the same batches."""
    sampler = Sampler(10, 2, shuffle=True, seed=0, last_batch=PARTIAL, rank=1, world_size=2)
    assert [p.ids.tolist() for p in sampler.begin()] == [[4, 5], [8, 9], [0]]


def test_the_tag_of_a_plan_is_no_part_of_equality() -> None:
    plan = Plan(0, np.arange(3), 3, True)
    assert replace(plan, tag="a") == replace(plan, tag="b") == plan
    assert replace(plan, tag="a").tag == "a"
