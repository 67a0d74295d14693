"""The partition that a client gets, where it begins, whose demand is served next, and what becomes
of the leases of clients that are silent or come back.
"""

import pytest

from gpupipe.protocol import messages
from gpupipe.server.batch_leases import Leased, MustWait
from gpupipe.server.options import ServerOptions
from gpupipe.server.pass_schedule import RequestRefused
from gpupipe.server.sessions import Sessions
from helpers.lease_tables import OPTIONS, STEPS, consume_all, hello, joined, lease_all


def sessions_with(options: ServerOptions, first: tuple[int, int] = (0, 0)) -> Sessions:
    return Sessions(options, lambda *place: STEPS, first)


def test_shared_batches_have_one_partition_and_broadcast_ones_one_each() -> None:
    shared = sessions_with(ServerOptions())
    broadcast = sessions_with(ServerOptions(mode="broadcast"))
    for sessions, count in ((shared, 1), (broadcast, 2)):
        tokens = [joined(sessions, number) for number in range(2)]
        assert len({sessions.state.clients[token].partition.name for token in tokens}) == count


def test_who_is_refused_a_partition() -> None:
    full = sessions_with(ServerOptions(max_clients=1))
    joined(full, 1)
    ranks = sessions_with(ServerOptions(clients=2))
    joined(ranks, 1, rank=1, world=2)
    for sessions, rank, world, why, is_temporary in [
        (full, 0, 1, "takes no more", True),
        (sessions_with(ServerOptions()), 0, 2, "--clients 2", False),
        (ranks, 0, 3, "--clients 3", False),
        (ranks, 1, 2, "rank 1 is taken on the server: by client 00", True),
    ]:
        with pytest.raises(RequestRefused, match=why) as refused:
            sessions._choose_partition(hello("9" * 32, rank=rank, world_size=world))
        assert refused.value.is_temporary == is_temporary


def test_a_client_begins_where_its_partition_is() -> None:
    sessions = sessions_with(ServerOptions(), (3, 40))
    client = sessions.open(hello("1" * 32), 0.0)
    assert sessions.start_position(client) == (3, 40)


def test_a_client_of_a_broadcast_begins_after_the_epoch_of_the_others() -> None:
    sessions = sessions_with(ServerOptions(mode="broadcast"))
    joined(sessions, 1)
    late = sessions.open(hello("2" * 32), 0.0)
    assert sessions.start_position(late) == (1, 0)


def test_what_a_late_client_misses() -> None:
    sessions = sessions_with(ServerOptions(hwm=5))
    first = joined(sessions, 1)
    lease_all(sessions)
    sessions.batches.acknowledge(first, [(0, 0), (0, 1)])
    late = sessions.open(hello("2" * 32), 30.0)
    missed = sessions.pass_in_progress(late, 30.0)
    assert missed is not None
    assert (missed.left, missed.steps) == (STEPS - 5, STEPS)
    assert missed.readers == ["client 00, silent for 30 s"]


def test_the_partition_that_needs_most_is_next() -> None:
    sessions = sessions_with(ServerOptions(clients=2, hwm=3))
    one, two = joined(sessions, 1, 0, 2), joined(sessions, 2, 1, 2)
    partitions = [sessions.state.clients[token].partition for token in (one, two)]
    for _ in range(2):
        sessions.batches.take(partitions[0])
    assert sessions.batches.neediest() is partitions[1]
    for _ in range(3):
        sessions.batches.take(partitions[1])
    assert sessions.batches.neediest() is partitions[0]
    sessions.batches.take(partitions[0])
    assert sessions.batches.neediest() is None
    assert sessions.batches.partition_to_prefetch() in partitions, (
        "more may be made ahead of demand"
    )


def test_a_broadcast_goes_no_further_than_its_slowest_client() -> None:
    sessions = sessions_with(ServerOptions(mode="broadcast", hwm=4))
    fast, slow = joined(sessions, 1), joined(sessions, 2)
    partition = sessions.state.clients[fast].partition
    assert partition.current is not None
    for step in range(4):
        assert sessions.batches.take(partition) == (partition.current.number, step)
        sessions.batches.lease((partition.current.number, step))
        sessions.batches.acknowledge(fast, [(partition.current.number, step)])
    assert sessions.batches.neediest() is sessions.state.clients[slow].partition
    assert sessions.batches.partition_to_prefetch() is sessions.state.clients[slow].partition


def test_the_progress_of_a_pass_is_counted() -> None:
    sessions = sessions_with(ServerOptions(hwm=5))
    assert sessions.stats(0.0) == {"partitions": [], "clients": []}
    token = joined(sessions, 1)
    sessions.batches.acknowledge(token, [(0, step) for step in lease_all(sessions)[token][:2]])
    stats = sessions.stats(1.5)
    progress = {"rank": 0, "epoch": 0, "position": 0, "done": 2, "steps": STEPS}
    assert stats["partitions"] == [progress]
    (client,) = stats["clients"]
    assert (client["leased"], client["consumed"], client["silent_seconds"]) == (3, 2, 1.5)


def test_a_silent_client_keeps_what_its_consumer_may_have() -> None:
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    first = joined(sessions, 1)
    assert lease_all(sessions) == {first: [0, 1, 2, 3, 4]}
    second = joined(sessions, 2)
    sessions.record_heartbeat(second, 11.0)
    sessions.apply_timeouts(11.0, lambda hello: False)
    assert lease_all(sessions) == {second: [3, 4, 5, 6, 7]}
    sessions.state.outbox.clear()
    sessions.record_heartbeat(first, 12.0)
    assert sessions.state.outbox == [(first, messages.Revoke([(0, 3), (0, 4)]))]
    sessions.end(first)
    sessions.batches.acknowledge(second, [(0, 3), (0, 4), (0, 5)])
    assert lease_all(sessions) == {second: [0, 1, 2]}, "what comes back is first"


def test_a_silent_client_is_lost_at_last() -> None:
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    first = joined(sessions, 1)
    lease_all(sessions)
    sessions.apply_timeouts(1001.0, lambda hello: False)
    assert first not in sessions.state.clients
    again = sessions.open(
        hello(first, held=[(0, 2)], consumed=[(0, 0), (0, 1)]), 1002.0, is_known=True
    )
    assert again.leases == [(0, 2)], "what nobody has got meanwhile is its own again"
    lane = again.partition
    assert lane.current is not None
    assert lane.current.done == {0, 1}, "and what it consumed counts"


def test_ranks_have_lanes_of_their_own() -> None:
    sessions = Sessions(ServerOptions(clients=2, hwm=3), lambda *place: STEPS, (0, 0))
    one, two = joined(sessions, 1, 0, 2), joined(sessions, 2, 1, 2)
    assert lease_all(sessions) == {one: [0, 1, 2], two: [0, 1, 2]}
    with pytest.raises(RequestRefused, match="rank 1 is taken"):
        joined(sessions, 3, 1, 2)
    with pytest.raises(RequestRefused, match="serve with --clients 3"):
        joined(sessions, 4, 1, 3)
    sessions.end(two)
    three = joined(sessions, 5, 1, 2)
    assert lease_all(sessions) == {three: [0, 1, 2]}


def test_ranks_are_not_served_from_a_shared_lane() -> None:
    with pytest.raises(RequestRefused, match="need equal steps"):
        joined(Sessions(OPTIONS, lambda *place: STEPS, (0, 0)), 1, 0, 2)


def test_no_more_clients_than_are_let_in() -> None:
    sessions = Sessions(ServerOptions(max_clients=1), lambda *place: STEPS, (0, 0))
    joined(sessions, 1)
    with pytest.raises(RequestRefused, match="takes no more"):
        joined(sessions, 2)


def test_those_in_one_epoch_of_a_broadcast_keep_together() -> None:
    """A batch is kept until `hwm` further ones are made, so nobody goes further ahead: not of one
    who is slow, nor of one who begins the epoch last.
    """
    sessions = Sessions(ServerOptions(mode="broadcast", hwm=3), lambda *place: STEPS, (0, 0))
    one, two = joined(sessions, 1), joined(sessions, 2)
    assert lease_all(sessions) == {one: [0, 1, 2], two: [0, 1, 2]}
    newcomer = sessions.open(hello("3" * 32), 0.0)
    assert sessions.start_position(newcomer) == (1, 0), "who joins begins with the next epoch"
    sessions.end(newcomer.token)
    sessions.batches.acknowledge(one, [(0, 0), (0, 1), (0, 2)])
    assert lease_all(sessions) == {one: [3, 4, 5]}
    sessions.batches.acknowledge(one, [(0, 3), (0, 4), (0, 5)])
    assert sessions.batches.neediest() is None, "the other has not consumed any"
    assert sessions.batches.partition_to_prefetch() is not sessions.state.clients[one].partition, (
        "also not where an engine works ahead"
    )
    sessions.batches.acknowledge(two, [(1, 0), (1, 1), (1, 2)])
    consume_all(sessions)
    assert [c.pass_number for c in sessions.state.clients.values()] == [None, None], (
        "the epoch is over"
    )
    sessions.start_iteration(one, messages.StartIteration(2, 1, 0, -1))
    assert consume_all(sessions) == {one: [0, 1, 2]}, "the other is expected"
    sessions.start_iteration(two, messages.StartIteration(2, 1, 0, -1))
    assert consume_all(sessions) == {one: list(range(3, STEPS)), two: list(range(STEPS))}
    sessions.start_iteration(one, messages.StartIteration(3, 2, 0, -1))
    assert consume_all(sessions) == {one: [0, 1, 2]}
    sessions.end_iteration(two)
    assert consume_all(sessions) == {one: list(range(3, STEPS))}, "it said that it does not come"


def test_a_hello_that_was_overtaken_does_not_count() -> None:
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    token = "1" * 32
    old, new = hello(token), hello(token)
    assert not sessions.is_overtaken(new)
    sessions.open(new, 0.0)
    assert sessions.is_overtaken(old)
    assert not sessions.is_overtaken(hello(token))


def test_a_place_that_others_bar_is_refused() -> None:
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    first, second = joined(sessions, 1), joined(sessions, 2)
    with pytest.raises(RequestRefused, match="go on with epoch 1"):
        sessions.start_iteration(second, messages.StartIteration(2, 0, 7, -1))
    sessions.end(first)
    sessions.start_iteration(second, messages.StartIteration(3, 0, 7, -1))
    assert sessions.state.outbox[-1] == (second, messages.IterationStarted(3, 1)), (
        "alone it may go where it likes"
    )


def take(sessions: Sessions) -> messages.Key:
    lane = sessions.batches.neediest() or sessions.batches.partition_to_prefetch()
    assert lane is not None
    key = sessions.batches.take(lane)
    assert key is not None
    return key


def test_a_ready_batch_waits_for_earlier_ones_that_came_back() -> None:
    """A paused client: five leases, of which two come back while further ones are being made."""
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    token = joined(sessions, 1)
    assert lease_all(sessions) == {token: [0, 1, 2, 3, 4]}
    ahead = [take(sessions), take(sessions)]
    assert ahead == [(0, 5), (0, 6)]
    sessions.apply_timeouts(11.0, lambda hello: False)
    sessions.record_heartbeat(token, 12.0)
    assert [sessions.batches.lease(key) for key in ahead] == [MustWait(), MustWait()]
    assert sessions.batches.neediest() is not None, (
        "what came back is made, though as many are ready"
    )
    earlier = [take(sessions), take(sessions)]
    assert earlier == [(0, 3), (0, 4)]
    assert sessions.batches.neediest() is None
    assert sessions.batches.lease(earlier[1]) == MustWait()
    for key in [*earlier, *ahead][: OPTIONS.hwm - messages.MAX_UNACKED]:
        assert isinstance(sessions.batches.lease(key), Leased)
    assert sessions.state.clients[token].leases == [(0, step) for step in range(5)]


def test_a_client_keeps_what_it_holds_only_behind_what_it_holds() -> None:
    """Behind its session: a step that is being made again comes before those that it holds."""
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    token = joined(sessions, 1)
    lease_all(sessions)
    sessions.apply_timeouts(11.0, lambda hello: False)
    assert take(sessions) == (0, 3)
    held = [(0, step) for step in range(5)]
    client = sessions.open(hello(token, held=held), 12.0, is_known=True)
    assert client.leases == held[: messages.MAX_UNACKED]


def test_what_a_client_had_from_another_server_does_not_count() -> None:
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    joined(sessions, 1)
    lease_all(sessions)
    assert take(sessions) == (0, 5)
    sessions.open(hello("3" * 32, consumed=[(0, 5)]), 0.0, is_known=False)
    current = sessions.state.partitions["0"].current
    assert current is not None
    assert current.done == set()


def test_readers_are_told_that_they_share_a_pass() -> None:
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    first = joined(sessions, 1)
    assert sessions.state.outbox == [(first, messages.IterationStarted(1, 0, False))]
    sessions.state.outbox.clear()
    second = joined(sessions, 2)
    shared = messages.IterationStarted(1, 0, True)
    assert sorted(sessions.state.outbox, key=lambda pair: pair[0]) == [
        (first, shared),
        (second, shared),
    ]
