"""What the ledger decides, case by case, and what its journal keeps of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledgers import RULES, STEPS, consume_all, hello, joined, lease_all

from gpupipe.client.inbox import Inbox
from gpupipe.protocol import messages
from gpupipe.server.client_state import Refusal, Rules
from gpupipe.server.leases import Leases
from gpupipe.server.write_ahead_log import WriteAheadLog


def test_a_silent_client_keeps_what_its_consumer_may_have() -> None:
    ledger = Leases(RULES, lambda *place: STEPS, (0, 0))
    first = joined(ledger, 1)
    assert lease_all(ledger) == {first: [0, 1, 2, 3, 4]}
    second = joined(ledger, 2)
    ledger.heard(second, 11.0)
    ledger.tick(11.0, lambda hello: False)
    assert lease_all(ledger) == {second: [3, 4, 5, 6, 7]}
    ledger.outbox.clear()
    ledger.heard(first, 12.0)
    assert ledger.outbox == [(first, messages.Revoke([(0, 3), (0, 4)]))]
    ledger.bye(first)
    ledger.done(second, [(0, 3), (0, 4), (0, 5)])
    assert lease_all(ledger) == {second: [0, 1, 2]}, "what comes back is first"


def test_a_silent_client_is_lost_at_last() -> None:
    ledger = Leases(RULES, lambda *place: STEPS, (0, 0))
    first = joined(ledger, 1)
    lease_all(ledger)
    ledger.tick(1001.0, lambda hello: False)
    assert first not in ledger.clients
    again = ledger.hello(hello(first, [(0, 3)], [(0, 0), (0, 1)]), 1002.0, returns=True)
    assert again.leases == [(0, 3)], "what nobody has got meanwhile is its own again"
    lane = again.lane
    assert lane.run is not None
    assert lane.run.done == {0, 1}, "and what it consumed counts"


def test_ranks_have_lanes_of_their_own() -> None:
    ledger = Leases(Rules(count=2, hwm=3), lambda *place: STEPS, (0, 0))
    one, two = joined(ledger, 1, 0, 2), joined(ledger, 2, 1, 2)
    assert lease_all(ledger) == {one: [0, 1, 2], two: [0, 1, 2]}
    with pytest.raises(Refusal, match="rank 1 is taken"):
        joined(ledger, 3, 1, 2)
    with pytest.raises(Refusal, match="serve with --clients 3"):
        joined(ledger, 4, 1, 3)
    ledger.bye(two)
    three = joined(ledger, 5, 1, 2)
    assert lease_all(ledger) == {three: [0, 1, 2]}


def test_ranks_are_not_served_from_a_shared_lane() -> None:
    with pytest.raises(Refusal, match="need equal steps"):
        joined(Leases(RULES, lambda *place: STEPS, (0, 0)), 1, 0, 2)


def test_no_more_clients_than_are_let_in() -> None:
    ledger = Leases(Rules(most_clients=1), lambda *place: STEPS, (0, 0))
    joined(ledger, 1)
    with pytest.raises(Refusal, match="takes no more"):
        joined(ledger, 2)


def test_those_in_one_epoch_of_a_broadcast_keep_together() -> None:
    """A batch is kept until `hwm` further ones are made, so nobody goes further ahead: not of one
    who is slow, nor of one who begins the epoch last.
    """
    ledger = Leases(Rules(mode="broadcast", hwm=3), lambda *place: STEPS, (0, 0))
    one, two = joined(ledger, 1), joined(ledger, 2)
    assert lease_all(ledger) == {one: [0, 1, 2], two: [0, 1, 2]}
    newcomer = ledger.hello(hello("3" * 32, [], []), 0.0)
    assert ledger.place(newcomer) == (1, 0), "who joins begins with the next epoch"
    ledger.bye(newcomer.token)
    ledger.done(one, [(0, 0), (0, 1), (0, 2)])
    assert lease_all(ledger) == {one: [3, 4, 5]}
    ledger.done(one, [(0, 3), (0, 4), (0, 5)])
    assert ledger.needy() is None, "the other has not consumed any"
    assert ledger.spare() is not ledger.clients[one].lane, "also not where an engine works ahead"
    ledger.done(two, [(1, 0), (1, 1), (1, 2)])
    consume_all(ledger)
    assert [c.run for c in ledger.clients.values()] == [None, None], "the epoch is over"
    ledger.begin(one, messages.Begin(2, 1, 0, -1))
    assert consume_all(ledger) == {one: [0, 1, 2]}, "the other is expected"
    ledger.begin(two, messages.Begin(2, 1, 0, -1))
    assert consume_all(ledger) == {one: list(range(3, STEPS)), two: list(range(STEPS))}
    ledger.begin(one, messages.Begin(3, 2, 0, -1))
    assert consume_all(ledger) == {one: [0, 1, 2]}
    ledger.stop(two)
    assert consume_all(ledger) == {one: list(range(3, STEPS))}, "it said that it does not come"


def test_a_hello_that_was_overtaken_does_not_count() -> None:
    ledger = Leases(RULES, lambda *place: STEPS, (0, 0))
    token = "1" * 32
    old, new = hello(token, [], []), hello(token, [], [])
    assert not ledger.is_old(new)
    ledger.hello(new, 0.0)
    assert ledger.is_old(old)
    assert not ledger.is_old(hello(token, [], []))


def test_a_place_that_others_bar_is_refused() -> None:
    ledger = Leases(RULES, lambda *place: STEPS, (0, 0))
    first, second = joined(ledger, 1), joined(ledger, 2)
    with pytest.raises(Refusal, match="go on with epoch 1"):
        ledger.begin(second, messages.Begin(2, 0, 7, -1))
    ledger.bye(first)
    ledger.begin(second, messages.Begin(3, 0, 7, -1))
    assert ledger.outbox[-1] == (second, messages.Begun(3, 1)), "alone it may go where it likes"


def test_a_journal_of_something_else_or_of_another_server_is_refused(tmp_path: Path) -> None:
    import gpupipe

    file = tmp_path / "state"
    first = WriteAheadLog(file, {"seed": 1})
    with pytest.raises(gpupipe.ServerError, match="another server keeps its state"):
        WriteAheadLog(file, {"seed": 1})
    ledger = Leases(RULES, lambda *place: STEPS, (0, 0), first.note)
    assert not first.resume(ledger, "a" * 32, 0.0)
    token = joined(ledger, 1)
    lease_all(ledger)
    ledger.done(token, [(0, 0)])
    first.close()
    with file.open("a") as f:
        f.write('["done", 0, 1')  # a line that was cut off
    other = WriteAheadLog(file, {"seed": 2})
    with pytest.raises(gpupipe.StateError, match="seed: 1 there, 2 here"):
        other.resume(ledger, "b" * 32, 0.0)
    other.close()
    again = WriteAheadLog(file, {"seed": 1})
    resumed = Leases(RULES, lambda *place: STEPS, (0, 0), again.note)
    assert again.resume(resumed, "c" * 32, 0.0)
    assert again.history == "a" * 32
    run = resumed.lanes["0"].run
    assert run is not None
    assert (run.done, sorted(run.out), run.back) == ({0}, [1, 2, 3, 4], list(range(5, STEPS)))
    again.close()


def test_what_came_back_before_a_restart_is_made_again_behind_it(tmp_path: Path) -> None:
    """From a client that is gone, and from one that was silent."""
    first = WriteAheadLog(tmp_path / "state", {})
    ledger = Leases(RULES, lambda *place: STEPS, (0, 0), first.note)
    first.resume(ledger, "a" * 32, 0.0)
    gone = joined(ledger, 1)
    assert lease_all(ledger) == {gone: [0, 1, 2, 3, 4]}
    silent = joined(ledger, 2)
    ledger.bye(gone)
    assert lease_all(ledger) == {silent: [0, 1, 2, 3, 4]}
    ledger.tick(11.0, lambda hello: False)
    first.close()
    again = WriteAheadLog(tmp_path / "state", {})
    resumed = Leases(RULES, lambda *place: STEPS, (0, 0), again.note)
    again.resume(resumed, "b" * 32, 12.0)
    again.close()
    run = resumed.lanes["0"].run
    assert run is not None
    assert run.out == {0: silent, 1: silent, 2: silent}
    assert run.back == list(range(3, STEPS))
    assert list(resumed.clients) == [silent]


def test_a_consumer_gets_no_more_than_the_server_counts_on() -> None:
    holding: Inbox[int] = Inbox()
    for step in range(6):
        holding.arrive((0, step), step)
    got = []
    while (taken := holding.take()) is not None:
        got.append(taken[1])
        holding.consume(taken[0])
    assert got == list(range(messages.WINDOW)), "nothing was confirmed"
    holding.revoke([(0, 4), (0, 5)])
    holding.confirm([(0, 0)])
    assert holding.take() == ((0, 3), 3)
    assert holding.take() is None
    holding.confirm([(0, 1), (0, 2)])
    assert holding.take() is None, "what was revoked is not handed out"
    assert not holding.consume((0, 4))
