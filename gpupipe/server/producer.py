"""The producer thread: makes as many batches as clients have credits for.

1. An engine works ahead: it takes plans before there is demand for them. A batch is parked until a
   client has credits for it.
2. Backpressure: the producer asks the engine for the next batch only while clients have more
   credits than batches are parked for them. That bounds the memory.
3. With `broadcast` a batch is made once for all clients. If its plan is in flight, the further keys
   are attached to that plan; else the batch is taken from the parked or the last leased ones.
4. The engine returns batches in the order of the plans. A plan that it skips had no sample that
   could be read.
5. A data error ends the iterations of the clients that read the failed plan, or of all readers if
   no plan is in flight. The next plan starts the engine again.
6. An EngineError is not the fault of a plan, so no further batch can be made. All clients get it,
   and the server ends.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from gpupipe.engines.base import Batch, Engine
from gpupipe.errors import EngineError, GpupipeError
from gpupipe.protocol.messages import Key
from gpupipe.sampling.sampler import Plan
from gpupipe.server.client_state import Client
from gpupipe.server.leases import Leases
from gpupipe.server.plans import Identity, Plans

Made = tuple[Plan, Batch]
"""A plan as the engine returned it, and its batch."""


class Producer(threading.Thread):
    """The thread that makes batches.

    Args:
        engine: Makes the batches.
        plans: The plans of all passes.
        ledger: The leases.
        changed: Condition whose lock guards the leases. It is notified whenever there may be work.
        deliver: Sends a batch to a client. Called without the lock.
        failed: Called under the lock with an error, the clients whose iterations it ended, and
            whether the server ends with it.

    Attributes:
        error: The error that ended the thread, or None.

    """

    def __init__(
        self,
        engine: Engine,
        plans: Plans,
        ledger: Leases,
        changed: threading.Condition,
        deliver: Callable[[Client, Key, Plan, Batch], None],
        failed: Callable[[Exception, list[Client], bool], None],
    ) -> None:
        super().__init__(name="gpupipe producer", daemon=True)
        self._engine, self._plans, self._ledger, self._changed = engine, plans, ledger, changed
        self._deliver, self._failed = deliver, failed
        self._in_flight: OrderedDict[Identity, list[Key]] = OrderedDict()
        self._parked: OrderedDict[Key, Made] = OrderedDict()
        self._recent: OrderedDict[Identity, Made] = OrderedDict()
        self._ended = False
        self.error: Exception | None = None

    def end(self) -> None:
        """Stop after the batch that is being made, and wait for the thread to end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.join()

    def run(self) -> None:
        running: Generator[Made, None, None] | None = None
        try:
            while (job := self._next_job()) is not None:
                if isinstance(job, tuple):
                    self._deliver(*job)
                else:
                    running = self._pull(running or self._engine.batches(self._source()))
        except Exception as e:  # an EngineError, or a fault of gpupipe
            self.error = e
            with self._changed:
                self._failed(e, list(self._ledger.clients.values()), True)
        finally:
            if running is not None:
                running.close()

    def _next_job(self) -> tuple[Client, Key, Plan, Batch] | bool | None:
        """Wait for work: return a batch to deliver, True to make one, or None at the end."""
        with self._changed:
            while not self._ended:
                delivery = self._lease_parked()
                if delivery is not None:
                    return delivery
                if self._should_pull():
                    return True
                self._changed.wait()
        return None

    def _lease_parked(self) -> tuple[Client, Key, Plan, Batch] | None:
        """Lease a parked batch to a client that has credits; None if there is none."""
        for key in list(self._parked):
            try:
                leased = self._ledger.lease(key)
            except KeyError:
                del self._parked[key]
                continue
            if leased is not None:
                client, last = leased
                plan, batch = self._parked.pop(key)
                self._remember((plan, batch))
                return client, key, replace(plan, last=last), batch
        return None

    def _should_pull(self) -> bool:
        waiting = {key[0] for keys in self._in_flight.values() for key in keys}
        return self._ledger.needy() is not None or any(
            self._ledger.room(run) > sum(key[0] == run for key in self._parked) for run in waiting
        )

    def _source(self) -> Iterator[Plan]:
        """Yield plans to the engine."""
        while True:
            with self._changed:
                identity = self._take()
                plan = self._plans.plan(identity) if isinstance(identity, tuple) else None
            if identity is None:
                return
            if plan is not None:
                yield plan

    def _take(self) -> Identity | bool | None:
        """Take the next step and return the identity of its batch.

        True if the batch exists already, or is being made, for another client; None if no step is
        left.
        """
        lane = self._ledger.needy() or self._ledger.spare()
        if (
            self._ended
            or lane is None
            or lane.run is None
            or (key := self._ledger.take(lane)) is None
        ):
            return None
        identity = lane.rank, lane.run.epoch, lane.run.position, key[1]
        existing = self._recent.get(identity) or next(
            (m for m in self._parked.values() if _identity(m) == identity), None
        )
        if existing is not None:
            self._parked[key] = existing
            return True
        if identity in self._in_flight:
            self._in_flight[identity].append(key)
            return True
        self._in_flight[identity] = [key]
        return identity

    def _pull(self, running: Generator[Made, None, None]) -> Generator[Made, None, None] | None:
        """Park the engine's next batch. Return the engine's iterator, or None if it has ended."""
        try:
            planned_batch = next(running, None)
        except EngineError:
            raise
        except GpupipeError as e:
            self._on_error(e)
            return None
        with self._changed:
            self._park(planned_batch)
        return running if planned_batch is not None else None

    def _park(self, planned_batch: Made | None) -> None:
        """Park a batch, and mark the skipped plans before it as left out.

        None means that the engine has ended: then all plans in flight are left out.
        """
        identity = None if planned_batch is None else _identity(planned_batch)
        while self._in_flight:
            first, keys = self._in_flight.popitem(last=False)
            if first == identity and planned_batch is not None:
                self._parked.update((key, planned_batch) for key in keys)
                return
            for key in keys:
                self._ledger.left_out(key)

    def _remember(self, planned_batch: Made) -> None:
        if self._ledger.rules.mode == "broadcast":
            self._recent[_identity(planned_batch)] = planned_batch
            while len(self._recent) > self._ledger.rules.hwm:
                self._recent.popitem(last=False)

    def _on_error(self, error: GpupipeError) -> None:
        with self._changed:
            runs = [
                key[0] for key in next(iter(self._in_flight.values()), [])
            ] or self._ledger.runs_now()
            for key in (key for keys in self._in_flight.values() for key in keys):
                self._ledger.not_made(key)
            self._in_flight.clear()
            self._failed(
                error, [client for run in runs for client in self._ledger.fail(run)], False
            )

    def facts(self) -> dict[str, Any]:
        """Return the metrics: batches parked, and plans in flight."""
        return {"parked": len(self._parked), "under_way": len(self._in_flight)}


def _identity(planned_batch: Made) -> Identity:
    identity: Identity = planned_batch[0].tag
    return identity
