"""The order of the samples, and what does not change it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from epochs_of_ranks import PARTIAL, Case, cases, delivered, steps_of
from hypothesis import given
from hypothesis import strategies as st

from gpupipe.sampling import draws
from gpupipe.sampling.sampler import Plan, Sampler


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


def test_a_plan_equals_only_itself() -> None:
    plan = Plan(0, np.arange(3), 3, True, tag="a")
    same_samples = replace(plan)
    assert same_samples.tag == "a"
    assert plan != same_samples
    assert [same_samples, plan].index(plan) == 1
