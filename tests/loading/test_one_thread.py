"""One loader in several threads: close() waits, and two threads that iterate get an error."""

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import gpupipe
from gpupipe.engines.base import Batch
from gpupipe.errors import GpupipeError
from gpupipe.loading.life_cycle import LifeCycle
from gpupipe.loading.one_thread import LockedIterator, OneThread
from gpupipe.sampling.sampler import Plan, Sampler
from helpers.counting_engine import EPOCH, Counting, ids
from helpers.forks import in_fork, said_by


class Waiting(Counting):
    """Waits before each batch, from the second on, until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.go_on = threading.Event(), threading.Event()

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        for number, item in enumerate(super().batches(plans)):
            if number:
                self.waits.set()
                assert self.go_on.wait(60)
            yield item


@pytest.fixture
def engine() -> Iterator[Waiting]:
    engine = Waiting()
    yield engine
    engine.go_on.set()


@pytest.fixture
def cycle(engine: Waiting) -> LifeCycle:
    return LifeCycle(engine, Sampler(6, 2, shuffle=False, seed=0, last_batch="partial"), None)


@pytest.fixture
def other() -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


@pytest.mark.parametrize("action", ["close", "stop", "iterate"])
def test_another_thread_waits_for_the_batch_and_ends_the_iteration(
    cycle: LifeCycle, engine: Waiting, other: Callable[..., Future[Any]], action: str
) -> None:
    batches = cycle.iterate(ids)
    assert next(batches) == EPOCH[0]
    second = other(next, batches)
    assert engine.waits.wait(60)
    arguments = (ids,) if action == "iterate" else ()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(getattr(cycle, action), *arguments)
        assert not ended.done()
        engine.go_on.set()
        ended.result(60)
    assert second.result(60) == EPOCH[1], "the batch that was waited for arrives"
    with pytest.raises(GpupipeError, match=r"ended by .*close\(\)"):
        next(batches)
    assert cycle.is_closed == (action == "close")


def test_two_threads_that_iterate_over_one_loader_are_told(
    cycle: LifeCycle, engine: Waiting, other: Callable[..., Future[Any]]
) -> None:
    batches = cycle.iterate(ids)
    next(batches)
    second = other(next, batches)
    assert engine.waits.wait(60)
    with pytest.raises(GpupipeError, match=r"two threads iterate .* a queue, or load"):
        next(batches)
    engine.go_on.set()
    assert second.result(60) == EPOCH[1], "the other one goes on"
    assert next(batches) == EPOCH[2], "and threads may take turns"


def test_close_inside_of_next_is_told(cycle: LifeCycle) -> None:
    def close(plan: Plan, batch: Batch) -> None:
        cycle.close()

    with pytest.raises(GpupipeError, match="signal handler or a step: raise an exception there"):
        next(cycle.iterate(close))
    cycle.close()
    assert cycle.is_closed, "and it can be closed after that"


def test_an_interrupt_in_next_leaves_the_loader_usable() -> None:
    def interrupted() -> Generator[int, None, None]:
        raise KeyboardInterrupt
        yield 0

    one_thread = OneThread()
    with pytest.raises(KeyboardInterrupt):
        next(LockedIterator(interrupted(), one_thread))
    with one_thread:
        assert not one_thread.try_enter()
    assert one_thread.try_enter()


@pytest.mark.parametrize("engine_name", ["dali", "cpu", "dataloader"])
def test_an_iterator_of_the_parent_is_refused_in_a_forked_process(
    faces: Any, engine_name: str
) -> None:
    config = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": ["decode", {"resize": {"size": [8, 8]}}],
        "loader": {"device": "cpu", "engine": engine_name, "batch_size": 4},
    }
    with gpupipe.load(config) as loader:
        batches = iter(loader)
        next(batches)
        assert "was forked from it: load() it there" in in_fork(
            lambda: said_by(lambda: next(batches))
        )
        assert in_fork(lambda: said_by(loader.close)) == "nothing", "close() does not wait"
        assert len(list(batches)) == len(loader) - 1, "and the parent goes on"
