"""The life cycle of a loader: which epoch the consumer gets, and what the engine does meanwhile.

                 first next() of an iterator                     last batch delivered
    ┌────────┐ ───────────────────────────────► ┌────────────┐ ───────────────────────► ┌─────────┐
    │  Idle  │                                  │  InEpoch   │                          │ Between │
    └────────┘ ◄─────────────────────────────── └────────────┘ ◄─────────────────────── └─────────┘
        ▲       iter() in the middle of an                      first next(), if the         │
        │       epoch, or stop()                                sampler begins that epoch    │
        └────────────────────────────────────────────────────────────────────────────────────┘
                 stop(), or first next() of another epoch: cancels the batches in flight

    close() leads from every state to Closed.

    Idle      The engine does not run.
    InEpoch   The engine delivers the batches of an epoch.
    Between   The epoch is over, and the engine prepares the batches of the next one.
    Closed    The loader cannot be used again.

Each state is a class, which holds the data that exist in that state only.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from gpupipe.dataset.population import Population
from gpupipe.engines.base import Batch, BatchStream
from gpupipe.errors import EngineError, GpupipeError
from gpupipe.loading.one_thread import LockedIterator, OneThread
from gpupipe.runtime.process import ExitHandler
from gpupipe.runtime.tracing import span
from gpupipe.sampling.sampler import Plan, Sampler

_Item = tuple[Plan, Batch]
_ENDED = "a newer iter() of the same loader, by load_state_dict() or by close()"


@dataclass
class _Run:
    """One run of the engine over one or more epochs.

    Attributes:
        batches: The plans and batches that the engine delivers.
        early: A plan and batch that were taken from `batches` too early; they are delivered next.
    """

    batches: Generator[_Item, None, None]
    early: _Item | None = None


@dataclass(frozen=True)
class _Idle:
    """The state of a loader whose engine does not run."""


@dataclass
class _InEpoch:
    """The state of a loader whose engine delivers the batches of an epoch.

    Attributes:
        epoch: The epoch whose batches are delivered.
        state_at_start: The sampler's state before the first batch of this iteration.
        run: The engine's run.
        delivered: The plan of the batch that the consumer has; None before the first batch.
        is_left: Whether the iterator was closed before its end, as by a break out of a loop.
    """

    epoch: int
    state_at_start: dict[str, Any]
    run: _Run
    delivered: Plan | None = None
    is_left: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the consumer has the last batch of the epoch."""
        return self.delivered is not None and self.delivered.last


@dataclass(frozen=True)
class _Between:
    """The state between two epochs: the engine prepares the first batches of `next_epoch`."""

    next_epoch: int
    run: _Run


@dataclass(frozen=True)
class _Closed:
    """The state of a loader that cannot be used again."""


class LifeCycle:
    """Iterates over epochs, and lets the engine run from one epoch into the next.

    Args:
        engine: Makes the batches.
        sampler: The order of the samples.
        population: The samples of each epoch, for a source that grows.
        start_run: Makes the engine deliver the batches of plans; None for `engine.batches`.
        locate_errors: Puts the line of a setting before errors about the whole data set.

    Attributes:
        waited: Seconds that iterations have waited for batches so far.
        delivered: How many batches were delivered so far.
    """

    def __init__(
        self,
        engine: BatchStream,
        sampler: Sampler,
        population: Population | None,
        start_run: Callable[[Iterator[Plan]], Generator[_Item, None, None]] | None = None,
        locate_errors: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._engine, self._sampler, self._population = engine, sampler, population
        self._start_run, self._locate_errors = start_run, locate_errors
        self._state: _Idle | _InEpoch | _Between | _Closed = _Idle()
        self._newest = 0
        """Number of the newest iterator, the only one that may be used."""
        self.waited, self.delivered = 0.0, 0
        self._one_thread = OneThread()
        self._at_exit = ExitHandler(self._stop_at_exit)

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return isinstance(self._state, _Closed)

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the loader's own, so that it has no threads."""
        return self._one_thread.is_forked

    @property
    def position(self) -> dict[str, Any]:
        """The sampler's state after the batch that was delivered last."""
        if not isinstance(self._state, _InEpoch):
            return self._sampler.state()
        if self._state.delivered is None:
            return self._state.state_at_start
        return self._sampler.state_after(self._state.delivered)

    def count_batches(self) -> int:
        """Return how many batches this rank gets in the epoch under way, else in the next one.

        Before the next one, this releases the samples of an epoch that is over: it may need the
        room.
        """
        state, population = self._state, self._population
        if population is not None and isinstance(state, _InEpoch) and not state.is_left:
            return self._sampler.count_batches(state.epoch)
        if population is not None and isinstance(state, _Between):
            population.release(min(state.next_epoch, self._sampler.epoch).__le__)
        return len(self._sampler)

    def iterate(self, convert: Callable[[Plan, Batch], Any]) -> Iterator[Any]:
        """Return an iterator over the next epoch. Older iterators raise GpupipeError from now on.

        Waits until no other thread waits for a batch.

        Args:
            convert: Converts a batch, given its plan, to the object that the consumer gets.

        Raises:
            GpupipeError: If the loader is closed, or this process was forked from the loader's.
        """
        if self.is_closed:
            raise GpupipeError("this loader is closed: load() another")
        with self._one_thread:
            self._leave_epoch()
            self._newest += 1
            return LockedIterator(self._iterate(self._newest, convert), self._one_thread)

    def stop(self) -> None:
        """End all iterations, and cancel all batches in flight.

        Waits until no other thread waits for a batch.
        """
        with self._one_thread:
            self._stop()

    def close(self) -> None:
        """End all iterations for good. Waits as `stop` does. Idempotent."""
        self._at_exit.cancel()
        with self._one_thread:
            self._stop()
            self._state = _Closed()

    def _stop(self) -> None:
        self._leave_epoch()
        self._cancel_run()
        self._newest += 1

    def _stop_at_exit(self) -> None:
        """Stop before the interpreter clears modules, which the engine needs in order to stop.

        If a daemon thread waits for a batch at that moment, it never gets the batch.
        """
        if self._one_thread.try_enter():
            try:
                self._stop()
            finally:
                self._one_thread.leave()

    def _iterate(
        self, number: int, convert: Callable[[Plan, Batch], Any]
    ) -> Generator[Any, None, None]:
        with self._locate_errors():
            yield from self._deliver_epoch(number, convert)

    def _deliver_epoch(
        self, number: int, convert: Callable[[Plan, Batch], Any]
    ) -> Generator[Any, None, None]:
        self._check_newest(number)
        state = self._start_epoch()
        while not state.is_complete:
            self._check_newest(number)
            item = self._next(state.run)
            if item is None or item[0].epoch != state.epoch:
                # Every sample of the last batches of this epoch was skipped.
                state.run.early = item
                break
            plan, batch = item
            started = time.perf_counter()
            with span("batch stage", "loader", epoch=plan.epoch, end=plan.end):
                converted = convert(plan, batch)
            self.waited += time.perf_counter() - started
            # The batch stage makes a new batch, so the memory of the engine's batch can be freed.
            del batch, item
            if state.delivered is None and self._population is not None:
                self._population.release(state.epoch.__le__)
            state.delivered = plan
            self.delivered += 1
            try:
                yield converted
            except GeneratorExit:
                state.is_left = True
                raise
            finally:
                if number == self._newest:  # if not, _leave_epoch() did; the engine may be closed
                    self._engine.mark_consumed(plan)
        if number == self._newest:
            self._state = _Between(state.epoch + 1, state.run)

    def _check_newest(self, number: int) -> None:
        if number != self._newest:
            raise GpupipeError(
                f"this iteration was ended by {_ENDED}: load() a second loader to run two at once"
            )

    def _start_epoch(self) -> _InEpoch:
        """Start the sampler's next epoch; continue the current run if it delivers that epoch."""
        epoch, state_at_start = self._sampler.epoch, self._sampler.state()
        run = self._find_run(epoch)
        if run is None:
            self._cancel_run()
            if self._population is not None:
                self._population.release(epoch.__eq__)
            start_run = self._start_run or self._engine.batches
            run = _Run(start_run(self._sampler.plans_ahead()))
        self._state = state = _InEpoch(epoch, state_at_start, run)
        self._sampler.begin()
        return state

    def _find_run(self, epoch: int) -> _Run | None:
        """Return the engine's current run if its next batch is the first of the epoch, else None.

        For a growing source, this waits for that batch, because the run may have ended. A run ends
        if the epoch's samples are not settled yet when the engine asks for the epoch's plans.
        """
        state = self._state
        if not isinstance(state, _Between):
            return None
        if (state.next_epoch, 0) != (epoch, self._sampler.position):
            return None
        if self._population is not None:
            state.run.early = self._next(state.run)
            return state.run if state.run.early is not None else None
        return state.run

    def _next(self, run: _Run) -> _Item | None:
        """Return the next plan and its batch; None if the run of a growing source has ended."""
        if run.early is not None:
            item, run.early = run.early, None
            return item
        started = time.perf_counter()
        with span("wait", "trainer"):
            following = next(run.batches, None)
        self.waited += time.perf_counter() - started
        if following is None and self._population is None:
            raise EngineError(
                f"{self._engine.name} ended before the epoch did; this is a mistake in the "
                "engine: please report it"
            )
        return following

    def _leave_epoch(self) -> None:
        """Tell the engine that the consumer is done with its batch, and leave the epoch."""
        state = self._state
        if not isinstance(state, _InEpoch):
            return
        if state.delivered is not None:
            self._engine.mark_consumed(state.delivered)
        if state.is_complete:
            self._state = _Between(state.epoch + 1, state.run)
        else:
            self._cancel_run()

    def _cancel_run(self) -> None:
        """Cancel all batches in flight."""
        if isinstance(self._state, _InEpoch | _Between):
            self._state.run.batches.close()
            self._state = _Idle()
