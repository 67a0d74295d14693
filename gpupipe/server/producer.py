"""The thread that makes batches, as many as clients have room for.

1. An engine works ahead of what it delivers, so it takes plans before they are asked for; a batch
   that nobody has room for yet is parked.
2. It is asked for the next batch only while somebody has room and nothing is parked for him: that
   is the backpressure, and what bounds the memory.
3. A batch that several want (broadcast) is made once: it is attached to the plan that is under way,
   or found among those parked or given last.
4. Plans that do not come out of the engine, in order, had no sample that could be read.
5. An error of the data ends the iterations of those who read the plan that failed, or of all
   readers if no plan is at fault. The next plan starts the engine again.
6. An EngineError is no fault of a plan: nothing that follows could be made. All clients get it, and
   the server ends.
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


class Producer(threading.Thread):
    """deliver: sends a batch to a client; it is called without the lock. failed: gets an error, the
    clients whose iterations it ended, and whether the server ends with it, under the lock.

    changed: the condition under which the ledger is used; notified whenever there may be something
    to do.
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
        self._fed: OrderedDict[Identity, list[Key]] = OrderedDict()
        self._parked: OrderedDict[Key, Made] = OrderedDict()
        self._recent: OrderedDict[Identity, Made] = OrderedDict()
        self._ended = False
        self.error: Exception | None = None

    def end(self) -> None:
        """Stop, after what is being made."""
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
        """A batch for a client; True where one should be made; None at the end."""
        with self._changed:
            while not self._ended:
                given = self._give()
                if given is not None:
                    return given
                if self._should_pull():
                    return True
                self._changed.wait()
        return None

    def _give(self) -> tuple[Client, Key, Plan, Batch] | None:
        """A parked batch that somebody has room for now."""
        for key in list(self._parked):
            try:
                leased = self._ledger.lease(key)
            except KeyError:
                del self._parked[key]
                continue
            if leased is not None:
                client, last = leased
                made = self._parked.pop(key)
                self._remember(made)
                return client, key, replace(made[0], last=last), made[1]
        return None

    def _should_pull(self) -> bool:
        waiting = {key[0] for keys in self._fed.values() for key in keys}
        return self._ledger.needy() is not None or any(
            self._ledger.room(run) > sum(key[0] == run for key in self._parked) for run in waiting
        )

    def _source(self) -> Iterator[Plan]:
        """What the engine takes plans from."""
        while True:
            with self._changed:
                identity = self._take()
                plan = self._plans.asked(identity) if isinstance(identity, tuple) else None
            if identity is None:
                return
            if plan is not None:
                yield plan

    def _take(self) -> Identity | bool | None:
        """The next plan to make; True where it was, or is being, made for another; None where
        nothing is left.
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
        made = self._recent.get(identity) or next(
            (m for m in self._parked.values() if _identity(m) == identity), None
        )
        if made is not None:
            self._parked[key] = made
            return True
        if identity in self._fed:
            self._fed[identity].append(key)
            return True
        self._fed[identity] = [key]
        return identity

    def _pull(self, running: Generator[Made, None, None]) -> Generator[Made, None, None] | None:
        """One batch out of the engine. Returns what goes on running."""
        try:
            made = next(running, None)
        except EngineError:
            raise
        except GpupipeError as e:
            self._on_error(e)
            return None
        with self._changed:
            self._park(made)
        return running if made is not None else None

    def _park(self, made: Made | None) -> None:
        """Put a batch where clients get it from; plans before it, or all where there is none, were
        left out.
        """
        identity = None if made is None else _identity(made)
        while self._fed:
            first, keys = self._fed.popitem(last=False)
            if first == identity and made is not None:
                self._parked.update((key, made) for key in keys)
                return
            for key in keys:
                self._ledger.left_out(key)

    def _remember(self, made: Made) -> None:
        if self._ledger.rules.mode == "broadcast":
            self._recent[_identity(made)] = made
            while len(self._recent) > self._ledger.rules.hwm:
                self._recent.popitem(last=False)

    def _on_error(self, error: GpupipeError) -> None:
        with self._changed:
            runs = [key[0] for key in next(iter(self._fed.values()), [])] or self._ledger.runs_now()
            for key in (key for keys in self._fed.values() for key in keys):
                self._ledger.not_made(key)
            self._fed.clear()
            self._failed(
                error, [client for run in runs for client in self._ledger.fail(run)], False
            )

    def facts(self) -> dict[str, Any]:
        return {"parked": len(self._parked), "under_way": len(self._fed)}


def _identity(made: Made) -> Identity:
    # engines hand back the plans that they were given
    return made[0].identity  # type: ignore[attr-defined, no-any-return]
