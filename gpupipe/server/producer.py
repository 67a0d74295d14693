"""The producer thread: makes as many batches as clients have credits for.

Two clients have one credit each when their pass starts. The thread then does this:

    1. no batch is ready, and there are credits    the engine takes the plans of steps 0, 1, 2 and
                                                   more, and returns batch 0
    2. batch 0 is ready                            lease it to a client, and send it
    3. no batch is ready, and a credit is left     the engine returns batch 1
    4. batch 1 is ready                            lease it to the other client, and send it
    5. no batch is ready, and no credit is left    wait

A step is in one of three collections, by its key:

    _in_flight (the engine makes it) ──> _ready ──lease──> _recent (broadcast only)

Invariants:

1. The engine works ahead: it takes plans before there is demand for them. A batch is ready until a
   client has credits for it.
2. Backpressure: the producer asks the engine for the next batch only while a client has credits
   and no batch is ready for it. If earlier steps are requeued, up to `hwm` ready batches of a pass
   wait for them; further batches are dropped, and their steps requeued. That bounds the memory.
3. With `broadcast` a batch is made once for all clients. If its plan is in flight, the keys of
   further clients are attached to that plan; else the batch is taken from `_ready` or `_recent`.
4. The engine returns batches in the order of the plans. A plan that it skips had no sample that
   could be read.
5. A data error ends the iterations of the clients that read the failed plan, or of all readers if
   no plan is in flight. The next plan starts the engine again.
6. An EngineError is not the fault of a plan, so no further batch can be made. All clients get it,
   and the server ends.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from gpupipe.engines.base import Batch, BatchStream
from gpupipe.errors import EngineError, GpupipeError
from gpupipe.protocol.messages import Key
from gpupipe.sampling.sampler import Plan
from gpupipe.server.batch_leases import Leased, NotNeeded
from gpupipe.server.clients_and_passes import Client
from gpupipe.server.served_work import Identity, Plans
from gpupipe.server.sessions import Sessions

PlannedBatch = tuple[Plan, Batch]
"""A plan as the engine returned it, and its batch."""
Delivery = tuple[str, Key, Plan, Batch]
"""A batch to send: (token of the client that leases it, key, plan, batch)."""


class Producer(threading.Thread):
    """A thread that gets batches from the engine, leases them to clients and sends them.

    Args:
        engine: Makes the batches.
        plans: The plans of all passes.
        sessions: Sessions, passes and leases of the server.
        changed: Condition whose lock guards the leases. It is notified whenever there may be work.
        deliver: Sends a batch to the client of a token. Called without the lock.
        failed: Called under the lock with an error, the clients whose iterations it ended, and
            whether the server ends too.

    Attributes:
        error: The error that ended the thread, or None.
    """

    def __init__(
        self,
        engine: BatchStream,
        plans: Plans,
        sessions: Sessions,
        changed: threading.Condition,
        deliver: Callable[[str, Key, Plan, Batch], None],
        failed: Callable[[Exception, list[Client], bool], None],
    ) -> None:
        super().__init__(name="gpupipe producer", daemon=True)
        self._engine, self._plans, self._sessions, self._changed = engine, plans, sessions, changed
        self._batches, self._options = sessions.batches, sessions.state.options
        self._deliver, self._failed = deliver, failed
        self._running: Generator[PlannedBatch, None, None] | None = None
        self._in_flight: OrderedDict[Identity, list[Key]] = OrderedDict()
        self._ready: dict[Key, PlannedBatch] = {}
        self._recent: OrderedDict[Identity, PlannedBatch] = OrderedDict()
        self._ended = False
        self.error: Exception | None = None

    def end(self) -> None:
        """Stop after the batch that is being made, and wait for the thread to end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.join()

    def stats(self) -> dict[str, Any]:
        """Return the metrics: batches ready to be leased, and plans in flight."""
        return {"ready_batches": len(self._ready), "plans_in_flight": len(self._in_flight)}

    def run(self) -> None:
        try:
            while True:
                delivery = self._wait_for_work()
                if delivery is not None:
                    self._deliver(*delivery)
                elif self._ended:
                    break
                else:
                    self._pull()
        except Exception as e:  # an EngineError, or a fault of gpupipe
            self.error = e
            with self._changed:
                self._failed(e, list(self._sessions.state.clients.values()), True)
        finally:
            if self._running is not None:
                self._running.close()

    def _wait_for_work(self) -> Delivery | None:
        """Wait for work. Return a batch to send, or None if the engine must make the next one.

        Also returns None if the thread must end.
        """
        with self._changed:
            while not self._ended:
                delivery = self._lease_ready()
                if delivery is not None or self._should_pull():
                    return delivery
                self._changed.wait()
        return None

    def _lease_ready(self) -> Delivery | None:
        """Lease a ready batch to a client with credits, and return it; None if none is leased."""
        for key in list(self._ready):
            lease = self._batches.lease(key)
            if isinstance(lease, NotNeeded):
                del self._ready[key]
            elif isinstance(lease, Leased):
                plan, batch = self._ready.pop(key)
                if self._options.mode == "broadcast":
                    self._recent[plan.tag] = plan, batch
                    while len(self._recent) > self._options.hwm:
                        self._recent.popitem(last=False)
                return lease.client.token, key, replace(plan, last=lease.is_last), batch
        return None

    def _should_pull(self) -> bool:
        """Return whether a client has credits for a batch that is in flight or not taken yet."""
        waiting = {key[0] for keys in self._in_flight.values() for key in keys}
        return self._batches.neediest() is not None or any(
            self._batches.total_credits(n) > 0 for n in waiting
        )

    # --- plans for the engine

    def _source(self) -> Iterator[Plan]:
        """Yield the plans whose batches the engine must make, until no step needs a new batch."""
        while True:
            with self._changed:
                plan = self._next_plan()
            if plan is None:
                return
            yield plan

    def _next_plan(self) -> Plan | None:
        """Take steps until one needs a new batch, and return its plan; None if no step does.

        With `broadcast`, the batch of a step may exist or be in flight already, for another client.
        """
        while not self._ended:
            partition = self._batches.neediest() or self._batches.partition_to_prefetch()
            if partition is None or partition.current is None:
                return None
            if (key := self._batches.take(partition)) is None:
                return None
            identity = partition.rank, *partition.current.start, key[1]
            existing = self._recent.get(identity) or next(
                (m for m in self._ready.values() if m[0].tag == identity), None
            )
            if existing is not None:
                self._ready[key] = existing
            elif identity in self._in_flight:
                self._in_flight[identity].append(key)
            else:
                self._in_flight[identity] = [key]
                return self._plans.plan(identity)
        return None

    # --- batches of the engine

    def _pull(self) -> None:
        """Get the engine's next batch. Starts the engine first if it is not running."""
        self._running = self._running or self._engine.batches(self._source())
        planned_batch = None
        try:
            planned_batch = next(self._running, None)
        except EngineError:
            raise
        except GpupipeError as e:
            self._on_error(e)
        else:
            with self._changed:
                self._add_ready(planned_batch)
        if planned_batch is None:
            self._running = None

    def _add_ready(self, planned_batch: PlannedBatch | None) -> None:
        """Add the engine's batch to the ready ones, and skip earlier plans that are in flight.

        `planned_batch` is None if the engine has ended: then all plans in flight are skipped.
        """
        while self._in_flight:
            identity, keys = self._in_flight.popitem(last=False)
            if planned_batch is not None and planned_batch[0].tag == identity:
                self._ready.update((key, planned_batch) for key in keys)
                for key in keys:
                    self._drop_surplus(key[0])
                return
            for key in keys:
                self._batches.skip(key)

    def _drop_surplus(self, pass_number: int) -> None:
        """Requeue ready batches of a pass beyond the first `hwm` if they wait for earlier steps."""
        ready = sorted(key for key in self._ready if key[0] == pass_number)
        if not self._batches.is_first(ready[0]):
            for key in ready[self._options.hwm :]:
                del self._ready[key]
                self._batches.requeue_unmade(key)

    def _on_error(self, error: GpupipeError) -> None:
        """End the iterations that a data error affects.

        They are those of all clients that read a pass with a step of the oldest plan in flight, or
        any pass if no plan is in flight. The steps of all plans in flight are queued again.
        """
        with self._changed:
            passes = [key[0] for key in next(iter(self._in_flight.values()), [])] or [
                current.number for current in self._sessions.state.current_passes()
            ]
            for key in (key for keys in self._in_flight.values() for key in keys):
                self._batches.requeue_unmade(key)
            self._in_flight.clear()
            clients = [c for n in passes for c in self._sessions.end_iterations(n)]
            self._failed(error, clients, False)
