"""The states of a loader's life cycle, with an engine that only counts."""

import pytest

from gpupipe.engines.base import Batch
from gpupipe.errors import EngineError, GpupipeError
from gpupipe.loading.life_cycle import LifeCycle
from gpupipe.sampling.sampler import Plan, Sampler
from helpers.counting_engine import EPOCH, Counting, ids


def cycle_of(engine: Counting) -> LifeCycle:
    """Six samples in batches of two, in the order of the index."""
    return LifeCycle(engine, Sampler(6, 2, shuffle=False, seed=0, last_batch="partial"), None)


def test_a_batch_that_cannot_be_converted_does_not_count_as_delivered() -> None:
    """The batch stage refuses it: a resume begins with it, and a server gets no acknowledgement."""

    def refuse_the_second(plan: Plan, batch: Batch) -> list[int]:
        if plan.ids[0] == 2:
            raise ValueError("not this one")
        return ids(plan, batch)

    engine = Counting()
    cycle = cycle_of(engine)
    iterator = cycle.iterate(refuse_the_second)
    assert next(iterator) == [0, 1]
    with pytest.raises(ValueError, match="not this one"):
        next(iterator)
    assert cycle.position["position"] == 2
    assert set(engine.consumed) == {(0, 2)}


def test_the_engine_runs_from_one_epoch_into_the_next() -> None:
    engine = Counting()
    cycle = cycle_of(engine)
    assert [list(cycle.iterate(ids)) for _ in range(3)] == [EPOCH] * 3
    assert (engine.runs, engine.cancelled) == (1, 0)
    assert {epoch for epoch, _ in engine.consumed} == {0, 1, 2}
    cycle.stop()
    assert engine.cancelled == 1


def test_the_last_batch_ends_the_epoch_even_if_the_iterator_is_left_there() -> None:
    engine = Counting()
    cycle = cycle_of(engine)
    iterator = cycle.iterate(ids)
    assert [next(iterator) for _ in EPOCH] == EPOCH
    assert cycle.position["epoch"] == 1
    assert list(cycle.iterate(ids)) == EPOCH
    assert engine.runs == 1


def test_an_epoch_that_is_left_early_cancels_what_is_in_flight() -> None:
    engine = Counting()
    cycle = cycle_of(engine)
    old = cycle.iterate(ids)
    assert next(old) == [0, 1]
    assert (cycle.position["epoch"], cycle.position["position"]) == (0, 2)
    assert list(cycle.iterate(ids)) == EPOCH
    assert (engine.runs, engine.cancelled) == (2, 1)
    assert (0, 2) in engine.consumed
    assert (0, 4) not in engine.consumed
    with pytest.raises(GpupipeError, match="ended by a newer iter"):
        next(old)


def test_stop_continues_at_the_position_that_the_sampler_is_given() -> None:
    engine = Counting()
    sampler = Sampler(6, 2, shuffle=False, seed=0, last_batch="partial")
    cycle = LifeCycle(engine, sampler, None)
    next(cycle.iterate(ids))
    state = cycle.position
    cycle.stop()
    sampler.load_state(state)
    assert list(cycle.iterate(ids)) == EPOCH[1:]


@pytest.mark.parametrize("skipped", [{(0, 6)}, {(0, 4), (0, 6)}])
def test_a_batch_of_the_next_epoch_waits_if_the_last_ones_were_skipped(
    skipped: set[tuple[int, int]],
) -> None:
    engine = Counting(frozenset(skipped))
    cycle = cycle_of(engine)
    assert list(cycle.iterate(ids)) == EPOCH[: 3 - len(skipped)]
    assert list(cycle.iterate(ids)) == EPOCH
    assert engine.runs == 1


def test_an_engine_that_ends_too_early_is_named() -> None:
    cycle = cycle_of(Counting(most=2))
    with pytest.raises(EngineError, match="counting ended before the epoch did"):
        list(cycle.iterate(ids))
    assert cycle.position["position"] == 4


def test_a_closed_loader_stays_closed() -> None:
    engine = Counting()
    cycle = cycle_of(engine)
    old = cycle.iterate(ids)
    next(old)
    cycle.close()
    cycle.close()
    cycle.stop()
    assert cycle.is_closed
    assert engine.cancelled == 1
    with pytest.raises(GpupipeError, match="this loader is closed"):
        cycle.iterate(ids)
    with pytest.raises(GpupipeError, match="ended by"):
        next(old)
