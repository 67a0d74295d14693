"""Who has which batch: the two halves of the protocol against one another, without sockets, under every order of disasters that hypothesis thinks of."""

from __future__ import annotations

import json
from collections import Counter, deque
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpupipe.link import wire
from gpupipe.link.holding import Holding
from gpupipe.link.journal import Journal
from gpupipe.link.ledger import WINDOW, Ledger
from gpupipe.link.readers import Refusal, Rules

STEPS = 12
RULES = Rules(hwm=5, silent=10, lost=1000)


_numbers = count(1)


def _hello(token: str, holding: list[wire.Key], done: list[wire.Key], rank: int = 0, world: int = 1) -> wire.Hello:
    return wire.Hello(wire.VERSION, token, next(_numbers), f"client {token[:2]}", rank, world, 5, "", 1, "", False, [], holding, done)


class Consumer:
    """A client and both directions of its connection: messages that are on their way."""

    def __init__(self, number: int) -> None:
        self.token = f"{number:032x}"
        self.holding: Holding[int] = Holding()
        self.run, self.number, self.ended, self.begun = -1, 0, False, False
        self.up: deque[wire.ToServer] = deque()
        self.down: deque[Any] = deque()
        self.consumed: list[wire.Key] = []
        self.paused = self.leaving = self.gone = False

    def connect(self) -> None:
        """A new connection: what was on its way is lost."""
        self.up.clear()
        self.down.clear()
        self.up.append(self.bye() if self.leaving else _hello(self.token, self.holding.keys, list(self.holding.unconfirmed)))

    def leave(self) -> None:
        """Its consumer has had enough: it is done with what it has, and goes."""
        for key in list(self.holding.taken):
            self.holding.consume(key)
        self.leaving = True
        self.holding.drop()
        self.up.append(self.bye())

    def bye(self) -> wire.Bye:
        return wire.Bye(self.token, list(self.holding.unconfirmed))

    def hear(self, message: Any) -> None:
        if self.leaving:
            self.gone = self.gone or isinstance(message, wire.Gone)
        elif isinstance(message, wire.Welcome):
            self.holding.keep_only(message.yours)
            self.up.append(wire.Begin(self.number, 0, 0, self.run))
        elif isinstance(message, wire.Begun):
            self.run = message.run
        elif isinstance(message, wire.Confirm):
            self.holding.confirm(message.keys)
        elif isinstance(message, wire.Revoke):
            self.holding.revoke(message.keys)
        elif isinstance(message, wire.Ended):
            self.ended = self.ended or message.run == self.run
        elif isinstance(message, wire.Who):
            self.up.append(_hello(self.token, self.holding.keys, list(self.holding.unconfirmed)))
        elif isinstance(message, wire.Batch) and message.key[0] == self.run:
            self.holding.arrive(message.key, message.key[1])


class Disasters(RuleBasedStateMachine):
    """One epoch of 12 batches, three clients at most alive. What was consumed by whom is kept, and a batch must never be consumed by two that live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.lines: list[list[Any]] = []
        self.ledger = Ledger(RULES, lambda *place: STEPS, (0, 0), lambda *event: self.lines.append(json.loads(json.dumps(event))))
        self.consumers: dict[str, Consumer] = {}
        self.dead: list[Consumer] = []
        self.left: list[Consumer] = []
        self.ended: set[str] = set()

    @initialize()
    def begin(self) -> None:
        for _ in range(2):
            self.join()

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

    def _handle(self, consumer: Consumer, message: wire.ToServer) -> None:
        token = consumer.token
        if isinstance(message, wire.Bye):
            self.ledger.part(token, message.done)
            consumer.down.append(wire.Gone())
        elif isinstance(message, wire.Hello):
            client = self.ledger.hello(message, self.now)
            consumer.down.append(wire.Welcome(1, "0" * 32, 1, list(client.leases), 0, 0, 0, 1, True, {}))
        elif not self.ledger.heard(token, self.now):
            consumer.down.append(wire.Who())
        elif isinstance(message, wire.Done):
            self.ledger.done(token, message.keys)
        elif isinstance(message, wire.Begin):
            self.ledger.begin(token, message)
        self._flush()

    def _flush(self) -> None:
        for token, message in self.ledger.outbox:
            if token in self.consumers:
                self.consumers[token].down.append(message)
        self.ledger.outbox.clear()

    @rule(count=st.integers(1, 6))
    def server_makes(self, count: int) -> None:
        for _ in range(count):
            lane = self.ledger.needy()
            key = self.ledger.take(lane) if lane else None
            if key is None:
                return
            leased = self.ledger.lease(key)
            self._flush()
            if leased is None:
                self.ledger.not_made(key)
            elif leased[0].token in self.consumers:
                self.consumers[leased[0].token].down.append(wire.Batch(key, 0, 0, leased[1], [], 0, None))

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
            for key in list(consumer.holding.taken):
                consumer.holding.consume(key)
                consumer.up.append(wire.Done([key], []))
            taken = consumer.holding.take()
            if taken is not None:
                consumer.consumed.append(taken[0])

    @rule(n=st.integers(0, 2))
    def client_pauses_or_wakes(self, n: int) -> None:
        consumer = self._one(n)
        consumer.paused = not consumer.paused

    @rule(seconds=st.sampled_from([5.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for consumer in self.consumers.values():
            if not consumer.paused:
                consumer.up.append(wire.Ping())
        self.ledger.tick(self.now, lambda hello: hello.token not in self.consumers)
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
        from gpupipe.link import journal

        lines, self.lines = self.lines, []
        self.ledger = Ledger(RULES, lambda *place: STEPS, (0, 0), lambda *event: self.lines.append(json.loads(json.dumps(event))))
        for line in lines:
            journal._replay(self.ledger, line, self.now)
        journal.after_restart(self.ledger)
        self.lines = lines
        for consumer in self.consumers.values():
            consumer.connect()

    @invariant()
    def nobody_that_lives_consumes_what_another_did(self) -> None:
        counts = Counter(key for c in [*self.consumers.values(), *self.left] for key in c.consumed)
        assert not [key for key, count in counts.items() if count > 1]

    @invariant()
    def only_the_last_of_the_dead_come_again(self) -> None:
        firm = [key for c in [*self.consumers.values(), *self.left] for key in c.consumed] + [key for c in self.dead for key in c.consumed[:-WINDOW]]
        assert len(firm) == len(set(firm))

    @invariant()
    def nobody_has_more_than_it_may(self) -> None:
        assert all(len(c.leases) <= c.hwm for c in self.ledger.clients.values())

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
        everything = {key for c in [*self.consumers.values(), *self.dead, *self.left] for key in c.consumed}
        assert everything == {(0, step) for step in range(STEPS)}, "nothing is lost"


TestDisasters = Disasters.TestCase
TestDisasters.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def _joined(ledger: Ledger, number: int, rank: int = 0, world: int = 1) -> str:
    token = f"{number:032x}"
    ledger.hello(_hello(token, [], [], rank, world), 0.0)
    ledger.begin(token, wire.Begin(1, 0, 0, -1))
    return token


def _lease_all(ledger: Ledger) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while (lane := ledger.needy()) and (key := ledger.take(lane)) and (leased := ledger.lease(key)):
        found.setdefault(leased[0].token, []).append(key[1])
    return found


def test_a_silent_client_keeps_what_its_consumer_may_have() -> None:
    ledger = Ledger(RULES, lambda *place: STEPS, (0, 0))
    first = _joined(ledger, 1)
    assert _lease_all(ledger) == {first: [0, 1, 2, 3, 4]}
    second = _joined(ledger, 2)
    ledger.heard(second, 11.0)
    ledger.tick(11.0, lambda hello: False)
    assert _lease_all(ledger) == {second: [3, 4, 5, 6, 7]}
    ledger.outbox.clear()
    ledger.heard(first, 12.0)
    assert ledger.outbox == [(first, wire.Revoke([(0, 3), (0, 4)]))]
    ledger.bye(first)
    ledger.done(second, [(0, 3), (0, 4), (0, 5)])
    assert _lease_all(ledger) == {second: [0, 1, 2]}, "what comes back is first"


def test_a_silent_client_is_lost_at_last() -> None:
    ledger = Ledger(RULES, lambda *place: STEPS, (0, 0))
    first = _joined(ledger, 1)
    _lease_all(ledger)
    ledger.tick(1001.0, lambda hello: False)
    assert first not in ledger.clients
    again = ledger.hello(_hello(first, [(0, 3)], [(0, 0), (0, 1)]), 1002.0)
    assert again.leases == [(0, 3)], "what nobody has got meanwhile is its own again"
    lane = again.lane
    assert lane.run is not None
    assert lane.run.done == {0, 1}, "and what it consumed counts"


def test_ranks_have_lanes_of_their_own() -> None:
    ledger = Ledger(Rules(count=2, hwm=3), lambda *place: STEPS, (0, 0))
    one, two = _joined(ledger, 1, 0, 2), _joined(ledger, 2, 1, 2)
    assert _lease_all(ledger) == {one: [0, 1, 2], two: [0, 1, 2]}
    with pytest.raises(Refusal, match="rank 1 is taken"):
        _joined(ledger, 3, 1, 2)
    with pytest.raises(Refusal, match="serve with --clients 3"):
        _joined(ledger, 4, 1, 3)
    ledger.bye(two)
    three = _joined(ledger, 5, 1, 2)
    assert _lease_all(ledger) == {three: [0, 1, 2]}


def test_ranks_are_not_served_from_a_shared_lane() -> None:
    with pytest.raises(Refusal, match="need equal steps"):
        _joined(Ledger(RULES, lambda *place: STEPS, (0, 0)), 1, 0, 2)


def test_no_more_clients_than_are_let_in() -> None:
    ledger = Ledger(Rules(most_clients=1), lambda *place: STEPS, (0, 0))
    _joined(ledger, 1)
    with pytest.raises(Refusal, match="takes no more"):
        _joined(ledger, 2)


def _consume_all(ledger: Ledger) -> dict[str, list[int]]:
    """What is leased and consumed until nobody gets anything any more."""
    found: dict[str, list[int]] = {}
    while leased := _lease_all(ledger):
        for token, steps in leased.items():
            found.setdefault(token, []).extend(steps)
            ledger.done(token, [(ledger.clients[token].run or 0, step) for step in steps])
    return found


def test_those_in_one_epoch_of_a_broadcast_keep_together() -> None:
    """A batch is kept until `hwm` further ones are made, so nobody goes further ahead: not of one who is slow, nor of one who begins the epoch last."""
    ledger = Ledger(Rules(mode="broadcast", hwm=3), lambda *place: STEPS, (0, 0))
    one, two = _joined(ledger, 1), _joined(ledger, 2)
    assert _lease_all(ledger) == {one: [0, 1, 2], two: [0, 1, 2]}
    newcomer = ledger.hello(_hello("3" * 32, [], []), 0.0)
    assert ledger.place(newcomer) == (1, 0), "who joins begins with the next epoch"
    ledger.bye(newcomer.token)
    ledger.done(one, [(0, 0), (0, 1), (0, 2)])
    assert _lease_all(ledger) == {one: [3, 4, 5]}
    ledger.done(one, [(0, 3), (0, 4), (0, 5)])
    assert ledger.needy() is None, "the other has not consumed any"
    assert ledger.spare() is not ledger.clients[one].lane, "also not where an engine works ahead"
    ledger.done(two, [(1, 0), (1, 1), (1, 2)])
    _consume_all(ledger)
    assert [c.run for c in ledger.clients.values()] == [None, None], "the epoch is over"
    ledger.begin(one, wire.Begin(2, 1, 0, -1))
    assert _consume_all(ledger) == {one: [0, 1, 2]}, "the other is expected"
    ledger.begin(two, wire.Begin(2, 1, 0, -1))
    assert _consume_all(ledger) == {one: list(range(3, STEPS)), two: list(range(STEPS))}
    ledger.begin(one, wire.Begin(3, 2, 0, -1))
    assert _consume_all(ledger) == {one: [0, 1, 2]}
    ledger.stop(two)
    assert _consume_all(ledger) == {one: list(range(3, STEPS))}, "it said that it does not come"


def test_a_hello_that_was_overtaken_does_not_count() -> None:
    ledger = Ledger(RULES, lambda *place: STEPS, (0, 0))
    token = "1" * 32
    old, new = _hello(token, [], []), _hello(token, [], [])
    assert not ledger.is_old(new)
    ledger.hello(new, 0.0)
    assert ledger.is_old(old)
    assert not ledger.is_old(_hello(token, [], []))


def test_a_place_that_others_bar_is_refused() -> None:
    ledger = Ledger(RULES, lambda *place: STEPS, (0, 0))
    first, second = _joined(ledger, 1), _joined(ledger, 2)
    with pytest.raises(Refusal, match="go on with epoch 1"):
        ledger.begin(second, wire.Begin(2, 0, 7, -1))
    ledger.bye(first)
    ledger.begin(second, wire.Begin(3, 0, 7, -1))
    assert ledger.outbox[-1] == (second, wire.Begun(3, 1, STEPS)), "alone it may go where it likes"


def test_a_journal_of_something_else_or_of_another_server_is_refused(tmp_path: Path) -> None:
    import gpupipe

    file = tmp_path / "state"
    first = Journal(file, {"seed": 1})
    with pytest.raises(gpupipe.ServerError, match="another server keeps its state"):
        Journal(file, {"seed": 1})
    ledger = Ledger(RULES, lambda *place: STEPS, (0, 0), first.note)
    assert not first.resume(ledger, "a" * 32, 0.0)
    token = _joined(ledger, 1)
    _lease_all(ledger)
    ledger.done(token, [(0, 0)])
    first.close()
    with file.open("a") as f:
        f.write('["done", 0, 1')  # a line that was cut off
    other = Journal(file, {"seed": 2})
    with pytest.raises(gpupipe.StateError, match="seed: 1 there, 2 here"):
        other.resume(ledger, "b" * 32, 0.0)
    other.close()
    again = Journal(file, {"seed": 1})
    resumed = Ledger(RULES, lambda *place: STEPS, (0, 0), again.note)
    assert again.resume(resumed, "c" * 32, 0.0)
    assert again.history == "a" * 32
    run = resumed.lanes["0"].run
    assert run is not None
    assert (run.done, sorted(run.out), run.back) == ({0}, [1, 2, 3, 4], list(range(5, STEPS)))
    again.close()


def test_what_came_back_before_a_restart_is_made_again_behind_it(tmp_path: Path) -> None:
    """From a client that is gone, and from one that was silent."""
    first = Journal(tmp_path / "state", {})
    ledger = Ledger(RULES, lambda *place: STEPS, (0, 0), first.note)
    first.resume(ledger, "a" * 32, 0.0)
    gone = _joined(ledger, 1)
    assert _lease_all(ledger) == {gone: [0, 1, 2, 3, 4]}
    silent = _joined(ledger, 2)
    ledger.bye(gone)
    assert _lease_all(ledger) == {silent: [0, 1, 2, 3, 4]}
    ledger.tick(11.0, lambda hello: False)
    first.close()
    again = Journal(tmp_path / "state", {})
    resumed = Ledger(RULES, lambda *place: STEPS, (0, 0), again.note)
    again.resume(resumed, "b" * 32, 12.0)
    again.close()
    run = resumed.lanes["0"].run
    assert run is not None
    assert run.out == {0: silent, 1: silent, 2: silent}
    assert run.back == list(range(3, STEPS))
    assert list(resumed.clients) == [silent]


def test_a_consumer_gets_no_more_than_the_server_counts_on() -> None:
    holding: Holding[int] = Holding()
    for step in range(6):
        holding.arrive((0, step), step)
    got = []
    while (taken := holding.take()) is not None:
        got.append(taken[1])
        holding.consume(taken[0])
    assert got == list(range(WINDOW)), "nothing was confirmed"
    holding.revoke([(0, 4), (0, 5)])
    holding.confirm([(0, 0)])
    assert holding.take() == ((0, 3), 3)
    assert holding.take() is None
    holding.confirm([(0, 1), (0, 2)])
    assert holding.take() is None, "what was revoked is not handed out"
    assert not holding.consume((0, 4))
