"""What the leases decide, case by case."""

from __future__ import annotations

import pytest

from gpupipe.protocol import messages
from gpupipe.server.client_state import LeaseRules, RequestRefused
from gpupipe.server.leases import Leases
from helpers.lease_tables import RULES, STEPS, consume_all, hello, joined, lease_all


def test_a_silent_client_keeps_what_its_consumer_may_have() -> None:
    leases = Leases(RULES, lambda *place: STEPS, (0, 0))
    first = joined(leases, 1)
    assert lease_all(leases) == {first: [0, 1, 2, 3, 4]}
    second = joined(leases, 2)
    leases.record_heartbeat(second, 11.0)
    leases.apply_timeouts(11.0, lambda hello: False)
    assert lease_all(leases) == {second: [3, 4, 5, 6, 7]}
    leases.outbox.clear()
    leases.record_heartbeat(first, 12.0)
    assert leases.outbox == [(first, messages.Revoke([(0, 3), (0, 4)]))]
    leases.end_session(first)
    leases.acknowledge(second, [(0, 3), (0, 4), (0, 5)])
    assert lease_all(leases) == {second: [0, 1, 2]}, "what comes back is first"


def test_a_silent_client_is_lost_at_last() -> None:
    leases = Leases(RULES, lambda *place: STEPS, (0, 0))
    first = joined(leases, 1)
    lease_all(leases)
    leases.apply_timeouts(1001.0, lambda hello: False)
    assert first not in leases.clients
    again = leases.open_session(
        hello(first, held=[(0, 2)], consumed=[(0, 0), (0, 1)]), 1002.0, is_known=True
    )
    assert again.leases == [(0, 2)], "what nobody has got meanwhile is its own again"
    lane = again.partition
    assert lane.current is not None
    assert lane.current.done == {0, 1}, "and what it consumed counts"


def test_ranks_have_lanes_of_their_own() -> None:
    leases = Leases(LeaseRules(num_ranks=2, hwm=3), lambda *place: STEPS, (0, 0))
    one, two = joined(leases, 1, 0, 2), joined(leases, 2, 1, 2)
    assert lease_all(leases) == {one: [0, 1, 2], two: [0, 1, 2]}
    with pytest.raises(RequestRefused, match="rank 1 is taken"):
        joined(leases, 3, 1, 2)
    with pytest.raises(RequestRefused, match="serve with --clients 3"):
        joined(leases, 4, 1, 3)
    leases.end_session(two)
    three = joined(leases, 5, 1, 2)
    assert lease_all(leases) == {three: [0, 1, 2]}


def test_ranks_are_not_served_from_a_shared_lane() -> None:
    with pytest.raises(RequestRefused, match="need equal steps"):
        joined(Leases(RULES, lambda *place: STEPS, (0, 0)), 1, 0, 2)


def test_no_more_clients_than_are_let_in() -> None:
    leases = Leases(LeaseRules(max_clients=1), lambda *place: STEPS, (0, 0))
    joined(leases, 1)
    with pytest.raises(RequestRefused, match="takes no more"):
        joined(leases, 2)


def test_those_in_one_epoch_of_a_broadcast_keep_together() -> None:
    """A batch is kept until `hwm` further ones are made, so nobody goes further ahead: not of one
    who is slow, nor of one who begins the epoch last.
    """
    leases = Leases(LeaseRules(mode="broadcast", hwm=3), lambda *place: STEPS, (0, 0))
    one, two = joined(leases, 1), joined(leases, 2)
    assert lease_all(leases) == {one: [0, 1, 2], two: [0, 1, 2]}
    newcomer = leases.open_session(hello("3" * 32), 0.0)
    assert leases.start_position(newcomer) == (1, 0), "who joins begins with the next epoch"
    leases.end_session(newcomer.token)
    leases.acknowledge(one, [(0, 0), (0, 1), (0, 2)])
    assert lease_all(leases) == {one: [3, 4, 5]}
    leases.acknowledge(one, [(0, 3), (0, 4), (0, 5)])
    assert leases.neediest() is None, "the other has not consumed any"
    assert leases.partition_to_prefetch() is not leases.clients[one].partition, (
        "also not where an engine works ahead"
    )
    leases.acknowledge(two, [(1, 0), (1, 1), (1, 2)])
    consume_all(leases)
    assert [c.pass_number for c in leases.clients.values()] == [None, None], "the epoch is over"
    leases.start_iteration(one, messages.StartIteration(2, 1, 0, -1))
    assert consume_all(leases) == {one: [0, 1, 2]}, "the other is expected"
    leases.start_iteration(two, messages.StartIteration(2, 1, 0, -1))
    assert consume_all(leases) == {one: list(range(3, STEPS)), two: list(range(STEPS))}
    leases.start_iteration(one, messages.StartIteration(3, 2, 0, -1))
    assert consume_all(leases) == {one: [0, 1, 2]}
    leases.end_iteration(two)
    assert consume_all(leases) == {one: list(range(3, STEPS))}, "it said that it does not come"


def test_a_hello_that_was_overtaken_does_not_count() -> None:
    leases = Leases(RULES, lambda *place: STEPS, (0, 0))
    token = "1" * 32
    old, new = hello(token), hello(token)
    assert not leases.is_overtaken(new)
    leases.open_session(new, 0.0)
    assert leases.is_overtaken(old)
    assert not leases.is_overtaken(hello(token))


def test_a_place_that_others_bar_is_refused() -> None:
    leases = Leases(RULES, lambda *place: STEPS, (0, 0))
    first, second = joined(leases, 1), joined(leases, 2)
    with pytest.raises(RequestRefused, match="go on with epoch 1"):
        leases.start_iteration(second, messages.StartIteration(2, 0, 7, -1))
    leases.end_session(first)
    leases.start_iteration(second, messages.StartIteration(3, 0, 7, -1))
    assert leases.outbox[-1] == (second, messages.IterationStarted(3, 1)), (
        "alone it may go where it likes"
    )


def take(leases: Leases) -> messages.Key:
    lane = leases.neediest() or leases.partition_to_prefetch()
    assert lane is not None
    key = leases.take(lane)
    assert key is not None
    return key


def test_a_ready_batch_waits_for_earlier_ones_that_came_back() -> None:
    """A paused client: five leases, of which two come back while further ones are being made."""
    leases = Leases(RULES, lambda *place: STEPS, (0, 0))
    token = joined(leases, 1)
    assert lease_all(leases) == {token: [0, 1, 2, 3, 4]}
    ahead = [take(leases), take(leases)]
    assert ahead == [(0, 5), (0, 6)]
    leases.apply_timeouts(11.0, lambda hello: False)
    leases.record_heartbeat(token, 12.0)
    assert [leases.lease(key) for key in ahead] == [None, None]
    assert leases.neediest() is not None, "what came back is made, though as many are ready"
    earlier = [take(leases), take(leases)]
    assert earlier == [(0, 3), (0, 4)]
    assert leases.neediest() is None
    assert leases.lease(earlier[1]) is None
    for key in [*earlier, *ahead][: RULES.hwm - messages.MAX_UNACKED]:
        assert leases.lease(key) is not None
    assert leases.clients[token].leases == [(0, step) for step in range(5)]


def test_a_client_keeps_what_it_holds_only_behind_what_it_holds() -> None:
    """Behind its session: a step that is being made again comes before those that it holds."""
    leases = Leases(RULES, lambda *place: STEPS, (0, 0))
    token = joined(leases, 1)
    lease_all(leases)
    leases.apply_timeouts(11.0, lambda hello: False)
    assert take(leases) == (0, 3)
    held = [(0, step) for step in range(5)]
    client = leases.open_session(hello(token, held=held), 12.0, is_known=True)
    assert client.leases == held[: messages.MAX_UNACKED]


def test_what_a_client_had_from_another_server_does_not_count() -> None:
    leases = Leases(RULES, lambda *place: STEPS, (0, 0))
    joined(leases, 1)
    lease_all(leases)
    assert take(leases) == (0, 5)
    leases.open_session(hello("3" * 32, consumed=[(0, 5)]), 0.0, is_known=False)
    current = leases.partitions["0"].current
    assert current is not None
    assert current.done == set()


def test_readers_are_told_that_they_share_a_pass() -> None:
    leases = Leases(RULES, lambda *place: STEPS, (0, 0))
    first = joined(leases, 1)
    assert leases.outbox == [(first, messages.IterationStarted(1, 0, False))]
    leases.outbox.clear()
    second = joined(leases, 2)
    shared = messages.IterationStarted(1, 0, True)
    assert sorted(leases.outbox, key=lambda pair: pair[0]) == [(first, shared), (second, shared)]
