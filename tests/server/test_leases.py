"""What the leases decide, case by case."""

from __future__ import annotations

import pytest

from gpupipe.protocol import messages
from gpupipe.server.batch_leases import Leased, MustWait
from gpupipe.server.leases import Leases
from gpupipe.server.options import ServerOptions
from gpupipe.server.pass_schedule import RequestRefused
from helpers.lease_tables import OPTIONS, STEPS, consume_all, hello, joined, lease_all


def test_a_silent_client_keeps_what_its_consumer_may_have() -> None:
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    first = joined(leases, 1)
    assert lease_all(leases) == {first: [0, 1, 2, 3, 4]}
    second = joined(leases, 2)
    leases.sessions.record_heartbeat(second, 11.0)
    leases.sessions.apply_timeouts(11.0, lambda hello: False)
    assert lease_all(leases) == {second: [3, 4, 5, 6, 7]}
    leases.state.outbox.clear()
    leases.sessions.record_heartbeat(first, 12.0)
    assert leases.state.outbox == [(first, messages.Revoke([(0, 3), (0, 4)]))]
    leases.sessions.end(first)
    leases.batches.acknowledge(second, [(0, 3), (0, 4), (0, 5)])
    assert lease_all(leases) == {second: [0, 1, 2]}, "what comes back is first"


def test_a_silent_client_is_lost_at_last() -> None:
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    first = joined(leases, 1)
    lease_all(leases)
    leases.sessions.apply_timeouts(1001.0, lambda hello: False)
    assert first not in leases.state.clients
    again = leases.sessions.open(
        hello(first, held=[(0, 2)], consumed=[(0, 0), (0, 1)]), 1002.0, is_known=True
    )
    assert again.leases == [(0, 2)], "what nobody has got meanwhile is its own again"
    lane = again.partition
    assert lane.current is not None
    assert lane.current.done == {0, 1}, "and what it consumed counts"


def test_ranks_have_lanes_of_their_own() -> None:
    leases = Leases(ServerOptions(clients=2, hwm=3), lambda *place: STEPS, (0, 0))
    one, two = joined(leases, 1, 0, 2), joined(leases, 2, 1, 2)
    assert lease_all(leases) == {one: [0, 1, 2], two: [0, 1, 2]}
    with pytest.raises(RequestRefused, match="rank 1 is taken"):
        joined(leases, 3, 1, 2)
    with pytest.raises(RequestRefused, match="serve with --clients 3"):
        joined(leases, 4, 1, 3)
    leases.sessions.end(two)
    three = joined(leases, 5, 1, 2)
    assert lease_all(leases) == {three: [0, 1, 2]}


def test_ranks_are_not_served_from_a_shared_lane() -> None:
    with pytest.raises(RequestRefused, match="need equal steps"):
        joined(Leases(OPTIONS, lambda *place: STEPS, (0, 0)), 1, 0, 2)


def test_no_more_clients_than_are_let_in() -> None:
    leases = Leases(ServerOptions(max_clients=1), lambda *place: STEPS, (0, 0))
    joined(leases, 1)
    with pytest.raises(RequestRefused, match="takes no more"):
        joined(leases, 2)


def test_those_in_one_epoch_of_a_broadcast_keep_together() -> None:
    """A batch is kept until `hwm` further ones are made, so nobody goes further ahead: not of one
    who is slow, nor of one who begins the epoch last.
    """
    leases = Leases(ServerOptions(mode="broadcast", hwm=3), lambda *place: STEPS, (0, 0))
    one, two = joined(leases, 1), joined(leases, 2)
    assert lease_all(leases) == {one: [0, 1, 2], two: [0, 1, 2]}
    newcomer = leases.sessions.open(hello("3" * 32), 0.0)
    assert leases.sessions.start_position(newcomer) == (1, 0), (
        "who joins begins with the next epoch"
    )
    leases.sessions.end(newcomer.token)
    leases.batches.acknowledge(one, [(0, 0), (0, 1), (0, 2)])
    assert lease_all(leases) == {one: [3, 4, 5]}
    leases.batches.acknowledge(one, [(0, 3), (0, 4), (0, 5)])
    assert leases.batches.neediest() is None, "the other has not consumed any"
    assert leases.batches.partition_to_prefetch() is not leases.state.clients[one].partition, (
        "also not where an engine works ahead"
    )
    leases.batches.acknowledge(two, [(1, 0), (1, 1), (1, 2)])
    consume_all(leases)
    assert [c.pass_number for c in leases.state.clients.values()] == [None, None], (
        "the epoch is over"
    )
    leases.sessions.start_iteration(one, messages.StartIteration(2, 1, 0, -1))
    assert consume_all(leases) == {one: [0, 1, 2]}, "the other is expected"
    leases.sessions.start_iteration(two, messages.StartIteration(2, 1, 0, -1))
    assert consume_all(leases) == {one: list(range(3, STEPS)), two: list(range(STEPS))}
    leases.sessions.start_iteration(one, messages.StartIteration(3, 2, 0, -1))
    assert consume_all(leases) == {one: [0, 1, 2]}
    leases.sessions.end_iteration(two)
    assert consume_all(leases) == {one: list(range(3, STEPS))}, "it said that it does not come"


def test_a_hello_that_was_overtaken_does_not_count() -> None:
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    token = "1" * 32
    old, new = hello(token), hello(token)
    assert not leases.sessions.is_overtaken(new)
    leases.sessions.open(new, 0.0)
    assert leases.sessions.is_overtaken(old)
    assert not leases.sessions.is_overtaken(hello(token))


def test_a_place_that_others_bar_is_refused() -> None:
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    first, second = joined(leases, 1), joined(leases, 2)
    with pytest.raises(RequestRefused, match="go on with epoch 1"):
        leases.sessions.start_iteration(second, messages.StartIteration(2, 0, 7, -1))
    leases.sessions.end(first)
    leases.sessions.start_iteration(second, messages.StartIteration(3, 0, 7, -1))
    assert leases.state.outbox[-1] == (second, messages.IterationStarted(3, 1)), (
        "alone it may go where it likes"
    )


def take(leases: Leases) -> messages.Key:
    lane = leases.batches.neediest() or leases.batches.partition_to_prefetch()
    assert lane is not None
    key = leases.batches.take(lane)
    assert key is not None
    return key


def test_a_ready_batch_waits_for_earlier_ones_that_came_back() -> None:
    """A paused client: five leases, of which two come back while further ones are being made."""
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    token = joined(leases, 1)
    assert lease_all(leases) == {token: [0, 1, 2, 3, 4]}
    ahead = [take(leases), take(leases)]
    assert ahead == [(0, 5), (0, 6)]
    leases.sessions.apply_timeouts(11.0, lambda hello: False)
    leases.sessions.record_heartbeat(token, 12.0)
    assert [leases.batches.lease(key) for key in ahead] == [MustWait(), MustWait()]
    assert leases.batches.neediest() is not None, "what came back is made, though as many are ready"
    earlier = [take(leases), take(leases)]
    assert earlier == [(0, 3), (0, 4)]
    assert leases.batches.neediest() is None
    assert leases.batches.lease(earlier[1]) == MustWait()
    for key in [*earlier, *ahead][: OPTIONS.hwm - messages.MAX_UNACKED]:
        assert isinstance(leases.batches.lease(key), Leased)
    assert leases.state.clients[token].leases == [(0, step) for step in range(5)]


def test_a_client_keeps_what_it_holds_only_behind_what_it_holds() -> None:
    """Behind its session: a step that is being made again comes before those that it holds."""
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    token = joined(leases, 1)
    lease_all(leases)
    leases.sessions.apply_timeouts(11.0, lambda hello: False)
    assert take(leases) == (0, 3)
    held = [(0, step) for step in range(5)]
    client = leases.sessions.open(hello(token, held=held), 12.0, is_known=True)
    assert client.leases == held[: messages.MAX_UNACKED]


def test_what_a_client_had_from_another_server_does_not_count() -> None:
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    joined(leases, 1)
    lease_all(leases)
    assert take(leases) == (0, 5)
    leases.sessions.open(hello("3" * 32, consumed=[(0, 5)]), 0.0, is_known=False)
    current = leases.state.partitions["0"].current
    assert current is not None
    assert current.done == set()


def test_readers_are_told_that_they_share_a_pass() -> None:
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    first = joined(leases, 1)
    assert leases.state.outbox == [(first, messages.IterationStarted(1, 0, False))]
    leases.state.outbox.clear()
    second = joined(leases, 2)
    shared = messages.IterationStarted(1, 0, True)
    assert sorted(leases.state.outbox, key=lambda pair: pair[0]) == [
        (first, shared),
        (second, shared),
    ]
