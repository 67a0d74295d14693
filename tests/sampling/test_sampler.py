"""The order of the samples, and what does not change it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe.dataset.population import Population
from gpupipe.sampling import draws
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import Selection
from helpers.epochs_of_ranks import PARTIAL, Case, cases, delivered, steps_of


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


@pytest.mark.parametrize(("batch_size", "count"), [(1, 16), (128, 16), (1000, 2), (4096, 1)])
def test_plans_are_made_at_once_up_to_a_number_of_samples(batch_size: int, count: int) -> None:
    """What is drawn for all of them takes memory until the last is delivered."""
    plans = Sampler(100_000, batch_size, shuffle=False, seed=0, last_batch=PARTIAL).begin()
    first = next(plans)
    assert first.siblings is not None
    assert len(first.siblings.batches) == count
    assert first.select([0]).siblings is None, "they have other samples"


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


def test_a_plan_of_some_of_its_samples_keeps_their_repeats() -> None:
    plan = Plan(0, np.array([5, 7, 5]), 3, True, tag="a", repeats=np.array([0, 2, 1]))
    part = plan.select([False, True, True])
    assert (part.ids.tolist(), part.repeats.tolist()) == ([7, 5], [2, 1])
    assert (part.tag, part.end, part.last) == ("a", 3, True)
    assert plan.select([2]).repeats.tolist() == [1]
    assert Plan(0, np.arange(3), 3, True).select([2]).repeats is None


def test_a_plan_equals_only_itself() -> None:
    plan = Plan(0, np.arange(3), 3, True, tag="a")
    same_samples = replace(plan)
    assert same_samples.tag == "a"
    assert plan != same_samples
    assert [same_samples, plan].index(plan) == 1


class Growing(Population):
    """The first rows of an index, more in every epoch until all 20 are there."""

    def ids(self, epoch: int, problem: Callable[[int], str]) -> np.ndarray:
        rows = np.arange(min(20, 4 + 3 * epoch), dtype=np.int64) * 2
        assert not problem(len(rows))
        return rows

    def is_ready(self, epoch: int, problem: Callable[[int], str]) -> bool:
        return True

    def generation(self, epoch: int) -> int | None:
        return epoch

    def resume(self, epoch: int, generation: int) -> None:
        assert epoch == generation

    def release(self, keep: Callable[[int], bool]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "selection",
    [
        Selection(3),
        Selection(2, "all"),
        Selection(2, 25),
        Selection(1, 7),
        Selection(weights=np.tile([1.0, 0.0, 3.0, 0.0], 10)),
    ],
    ids=lambda s: f"{s.repeats} {s.epoch_size} {s.weights is not None}",
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_that_grow(selection: Selection, shuffle: bool) -> None:
    def ranks(world_size: int) -> list[Sampler]:
        return [
            Sampler(
                40,
                3,
                shuffle=shuffle,
                seed=1,
                last_batch=PARTIAL,
                rank=rank,
                world_size=world_size,
                population=Growing(),
                selection=selection,
            )
            for rank in range(world_size)
        ]

    (alone,), pair = ranks(1), ranks(2)
    for epoch in range(8):
        available = np.arange(min(20, 4 + 3 * epoch)) * 2
        size = selection.epoch_size_of(len(available))
        assert alone.epoch_size == size
        assert len(alone) == -(-size // 3)
        steps = steps_of(pair)
        assert sorted(delivered(steps)) == sorted(alone.order(epoch).tolist())
        plans = list(alone.begin())
        assert [i for p in plans for i in p.ids.tolist()] == alone.order(epoch).tolist()
        assert set(alone.order(epoch).tolist()) <= set(available.tolist())
        (again,) = ranks(1)
        again.load_state(alone.state_after(plans[0]))
        if not plans[0].last:
            rest = [i for p in again.begin() for i in p.ids.tolist()]
            assert rest == alone.order(epoch).tolist()[3:]
    if selection.weights is None:
        # 120 epochs are whole passes, now that all 20 rows are there.
        times = Counter(int(i) for epoch in range(120, 240) for i in alone.order(epoch))
        assert set(times.values()) == {6 * alone.epoch_size}
