"""Who has which batch: the two halves of the protocol against one another, without sockets, under
every order of disasters that hypothesis thinks of.
"""

from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import json

from gpupipe.engines.remote.reading import Inbox, ReceivedBatch
from gpupipe.protocol import messages
from gpupipe.server.batch_leases import Leased
from gpupipe.server.lease_state import Record
from gpupipe.server.sessions import Sessions
from helpers.lease_tables import OPTIONS, STEPS, hello


class Consumer:
    """A client and both directions of its connection: messages that are on their way."""

    def __init__(self, number: int) -> None:
        self.token = f"{number:032x}"
        self.held = Inbox()
        self.run, self.number, self.ended, self.begun = -1, 0, False, False
        self.up: deque[messages.ToServer] = deque()
        self.down: deque[Any] = deque()
        self.consumed: list[messages.Key] = []
        self.paused = self.leaving = self.gone = False

    def connect(self) -> None:
        """A new connection: what was on its way is lost."""
        self.up.clear()
        self.down.clear()
        self.up.append(
            self.bye()
            if self.leaving
            else hello(self.token, held=self.held.keys, consumed=list(self.held.unconfirmed))
        )

    def leave(self) -> None:
        """Its consumer has had enough: it is done with what it has, and goes."""
        for key in list(self.held.taken):
            self.held.consume(key)
        self.leaving = True
        self.held.drop()
        self.up.append(self.bye())

    def bye(self) -> messages.CloseSession:
        return messages.CloseSession(self.token, list(self.held.unconfirmed))

    def hear(self, message: Any) -> None:
        if self.leaving:
            self.gone = self.gone or isinstance(message, messages.SessionClosed)
        elif isinstance(message, messages.SessionOpened):
            self.held.keep_only(message.leased)
            self.up.append(messages.StartIteration(self.number, 0, 0, self.run))
        elif isinstance(message, messages.IterationStarted):
            self.run = message.pass_number
        elif isinstance(message, messages.Confirm):
            self.held.confirm(message.keys)
        elif isinstance(message, messages.Revoke):
            self.held.revoke(message.keys)
        elif isinstance(message, messages.PassEnded):
            self.ended = self.ended or message.pass_number == self.run
        elif isinstance(message, messages.UnknownSession):
            self.up.append(
                hello(self.token, held=self.held.keys, consumed=list(self.held.unconfirmed))
            )
        elif isinstance(message, messages.BatchHeader) and message.key[0] == self.run:
            self.held.add(ReceivedBatch(message, None))


RESUMED = replace(OPTIONS, resume=True, state=Path("state"))
"""Clients come and go on one epoch, which goes on when none is there."""


class Disasters(RuleBasedStateMachine):
    """One epoch of 12 batches, three clients at most alive.

    What was consumed by whom is kept, and a batch must never be consumed by two that live.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.lines: list[bytes] = []
        self.sessions = self.new_sessions()
        self.consumers: dict[str, Consumer] = {}
        self.dead: list[Consumer] = []
        self.left: list[Consumer] = []
        self.ended: set[str] = set()

    def new_sessions(self) -> Sessions:
        return Sessions(
            RESUMED,
            lambda *place: STEPS,
            (0, 0),
            lambda record: self.lines.append(json.encode(record)),
        )

    def replayed(self) -> Sessions:
        """What a new server knows from the journal alone."""
        sessions = self.new_sessions()
        for line in self.lines:
            sessions.state.apply(json.decode(line, type=Record))
        return sessions

    @initialize(are_reading=st.booleans())
    def begin(self, are_reading: bool) -> None:
        """Two clients join; or they lease batches already, or few examples would get so far."""
        for _ in range(2):
            self.join()
        for n in [0, 1] * 2 if are_reading else []:
            self.server_hears(n, 2)
            self.client_hears(n, 2)
        if are_reading:
            self.server_makes(8)

    @precondition(lambda self: len(self.consumers) < 3)
    @rule()
    def join(self) -> None:
        consumer = Consumer(len(self.consumers) + len(self.dead) + len(self.left))
        self.consumers[consumer.token] = consumer
        consumer.connect()

    def _one(self, n: int) -> Consumer:
        return list(self.consumers.values())[n % len(self.consumers)]

    @rule(n=st.integers(0, 2), count=st.integers(1, 8))
    def server_hears(self, n: int, count: int) -> None:
        consumer = self._one(n)
        for _ in range(min(count, len(consumer.up))):
            self._handle(consumer, consumer.up.popleft())

    def _handle(self, consumer: Consumer, message: messages.ToServer) -> None:
        token = consumer.token
        if isinstance(message, messages.CloseSession):
            self.sessions.close(token, message.consumed)
            consumer.down.append(messages.SessionClosed())
        elif isinstance(message, messages.OpenSession):
            client = self.sessions.open(message, self.now, is_known=True)
            consumer.down.append(
                messages.SessionOpened(1, "0" * 32, 1, list(client.leases), 0, 0, 0, 1, {})
            )
        elif not self.sessions.record_heartbeat(token, self.now):
            consumer.down.append(messages.UnknownSession())
        elif isinstance(message, messages.Acknowledge):
            self.sessions.batches.acknowledge(token, message.keys)
        elif isinstance(message, messages.StartIteration):
            self.sessions.start_iteration(token, message)
        self._flush()

    def _flush(self) -> None:
        for token, message in self.sessions.state.outbox:
            if token in self.consumers:
                self.consumers[token].down.append(message)
        self.sessions.state.outbox.clear()

    @rule(count=st.integers(1, 6))
    def server_makes(self, count: int) -> None:
        for _ in range(count):
            lane = self.sessions.batches.neediest()
            key = self.sessions.batches.take(lane) if lane else None
            if key is None:
                return
            leased = self.sessions.batches.lease(key)
            self._flush()
            if not isinstance(leased, Leased):
                self.sessions.batches.requeue_unmade(key)
            elif leased.client.token in self.consumers:
                self.consumers[leased.client.token].down.append(
                    messages.BatchHeader(key, 0, 0, leased.is_last, [], 0, None)
                )

    @rule(n=st.integers(0, 2), count=st.integers(1, 8))
    def client_hears(self, n: int, count: int) -> None:
        consumer = self._one(n)
        for _ in range(0 if consumer.paused else min(count, len(consumer.down))):
            consumer.hear(consumer.down.popleft())
        if consumer.gone:
            self.left.append(self.consumers.pop(consumer.token))

    @rule(n=st.integers(0, 2), count=st.integers(1, 4))
    def client_consumes(self, n: int, count: int) -> None:
        consumer = self._one(n)
        for _ in range(0 if consumer.paused or consumer.leaving else count):
            for key in list(consumer.held.taken):
                consumer.held.consume(key)
                consumer.up.append(messages.Acknowledge([key], []))
            taken = consumer.held.take()
            if taken is not None:
                consumer.consumed.append(taken.head.key)

    @rule(n=st.integers(0, 2))
    def client_pauses_or_wakes(self, n: int) -> None:
        consumer = self._one(n)
        consumer.paused = not consumer.paused

    @rule(seconds=st.sampled_from([5.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for consumer in self.consumers.values():
            if not consumer.paused:
                consumer.up.append(messages.Ping())
        self.sessions.apply_timeouts(self.now, lambda hello: hello.token not in self.consumers)
        self._flush()

    @rule(n=st.integers(0, 2))
    def connection_breaks(self, n: int) -> None:
        self._one(n).connect()

    def _staying(self) -> list[Consumer]:
        return [c for c in self.consumers.values() if not c.leaving]

    @precondition(lambda self: len(self._staying()) > 1)
    @rule(n=st.integers(0, 2))
    def client_leaves(self, n: int) -> None:
        if not self._one(n).leaving:
            self._one(n).leave()

    @rule(n=st.integers(0, 2))
    def client_dies(self, n: int) -> None:
        consumer = self._one(n)
        if consumer.leaving or len(self._staying()) > 1:
            self.dead.append(self.consumers.pop(consumer.token))

    @rule()
    def server_dies(self) -> None:
        """Only the journal is left."""
        self.sessions = self.replayed()
        self.sessions.state.continue_after_restart(self.now)
        for consumer in self.consumers.values():
            consumer.connect()

    @invariant()
    def nobody_that_lives_consumes_what_another_did(self) -> None:
        counts = Counter(key for c in [*self.consumers.values(), *self.left] for key in c.consumed)
        assert not [key for key, count in counts.items() if count > 1]

    @invariant()
    def only_the_last_of_the_dead_come_again(self) -> None:
        firm = [key for c in [*self.consumers.values(), *self.left] for key in c.consumed] + [
            key for c in self.dead for key in c.consumed[: -messages.MAX_UNACKED]
        ]
        assert len(firm) == len(set(firm))

    @invariant()
    def nobody_has_more_than_it_may(self) -> None:
        assert all(len(c.leases) <= c.hwm for c in self.sessions.state.clients.values())

    @invariant()
    def the_journal_leads_to_what_the_server_knows(self) -> None:
        replayed = self.replayed().state
        assert list(replayed.snapshot()) == list(self.sessions.state.snapshot())

    @invariant()
    def clients_and_passes_agree_on_the_leases(self) -> None:
        held = {key: c.token for c in self.sessions.state.clients.values() for key in c.leases}
        assert held == {
            (current.number, step): token
            for current in self.sessions.state.current_passes()
            for step, token in current.leased.items()
        }

    def teardown(self) -> None:
        """From wherever it is, with no more disasters, the epoch is consumed to its end."""
        if not self.consumers:
            return
        for consumer in self.consumers.values():
            consumer.paused = False
        for _ in range(300):
            self.time_passes(0.5)
            for n in range(len(self.consumers)):
                self.server_hears(n, 100)
            self.server_makes(6)
            for n in reversed(range(len(self.consumers))):
                self.client_hears(n, 100)
            for n in range(len(self.consumers)):
                self.client_consumes(n, 1)
            self.nobody_that_lives_consumes_what_another_did()
            self.only_the_last_of_the_dead_come_again()
            if all(c.ended for c in self._staying()):
                break
        assert all(c.ended for c in self._staying()), "the run ends"
        everything = {
            key for c in [*self.consumers.values(), *self.dead, *self.left] for key in c.consumed
        }
        assert everything == {(0, step) for step in range(STEPS)}, "nothing is lost"


TestDisasters = Disasters.TestCase
TestDisasters.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
