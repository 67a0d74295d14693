"""The partition that a client gets, where it begins, and whose demand is served next."""

from __future__ import annotations

import pytest

from gpupipe.server.leases import Leases
from gpupipe.server.options import ServerOptions
from gpupipe.server.pass_schedule import RequestRefused
from helpers.lease_tables import STEPS, hello, joined, lease_all


def leases_with(options: ServerOptions, first: tuple[int, int] = (0, 0)) -> Leases:
    return Leases(options, lambda *place: STEPS, first)


def test_shared_batches_have_one_partition_and_broadcast_ones_one_each() -> None:
    shared = leases_with(ServerOptions())
    broadcast = leases_with(ServerOptions(mode="broadcast"))
    for leases, count in ((shared, 1), (broadcast, 2)):
        tokens = [joined(leases, number) for number in range(2)]
        assert len({leases.state.clients[token].partition.name for token in tokens}) == count


def test_who_is_refused_a_partition() -> None:
    full = leases_with(ServerOptions(max_clients=1))
    joined(full, 1)
    ranks = leases_with(ServerOptions(clients=2))
    joined(ranks, 1, rank=1, world=2)
    for leases, rank, world, why, is_temporary in [
        (full, 0, 1, "takes no more", True),
        (leases_with(ServerOptions()), 0, 2, "--clients 2", False),
        (ranks, 0, 3, "--clients 3", False),
        (ranks, 1, 2, "rank 1 is taken on the server: by client 00", True),
    ]:
        with pytest.raises(RequestRefused, match=why) as refused:
            leases.sessions._choose_partition(hello("9" * 32, rank=rank, world_size=world))
        assert refused.value.is_temporary == is_temporary


def test_a_client_begins_where_its_partition_is() -> None:
    leases = leases_with(ServerOptions(), (3, 40))
    client = leases.sessions.open(hello("1" * 32), 0.0)
    assert leases.sessions.start_position(client) == (3, 40)


def test_a_client_of_a_broadcast_begins_after_the_epoch_of_the_others() -> None:
    leases = leases_with(ServerOptions(mode="broadcast"))
    joined(leases, 1)
    late = leases.sessions.open(hello("2" * 32), 0.0)
    assert leases.sessions.start_position(late) == (1, 0)


def test_what_a_late_client_misses() -> None:
    leases = leases_with(ServerOptions(hwm=5))
    first = joined(leases, 1)
    lease_all(leases)
    leases.batches.acknowledge(first, [(0, 0), (0, 1)])
    late = leases.sessions.open(hello("2" * 32), 30.0)
    missed = leases.sessions.pass_in_progress(late, 30.0)
    assert missed is not None
    assert (missed.left, missed.steps) == (STEPS - 5, STEPS)
    assert missed.readers == ["client 00, silent for 30 s"]


def test_the_partition_that_needs_most_is_next() -> None:
    leases = leases_with(ServerOptions(clients=2, hwm=3))
    one, two = joined(leases, 1, 0, 2), joined(leases, 2, 1, 2)
    partitions = [leases.state.clients[token].partition for token in (one, two)]
    for _ in range(2):
        leases.batches.take(partitions[0])
    assert leases.batches.neediest() is partitions[1]
    for _ in range(3):
        leases.batches.take(partitions[1])
    assert leases.batches.neediest() is partitions[0]
    leases.batches.take(partitions[0])
    assert leases.batches.neediest() is None
    assert leases.batches.partition_to_prefetch() in partitions, "more may be made ahead of demand"


def test_a_broadcast_goes_no_further_than_its_slowest_client() -> None:
    leases = leases_with(ServerOptions(mode="broadcast", hwm=4))
    fast, slow = joined(leases, 1), joined(leases, 2)
    partition = leases.state.clients[fast].partition
    assert partition.current is not None
    for step in range(4):
        assert leases.batches.take(partition) == (partition.current.number, step)
        leases.batches.lease((partition.current.number, step))
        leases.batches.acknowledge(fast, [(partition.current.number, step)])
    assert leases.batches.neediest() is leases.state.clients[slow].partition
    assert leases.batches.partition_to_prefetch() is leases.state.clients[slow].partition


def test_the_progress_of_a_pass_is_counted() -> None:
    leases = leases_with(ServerOptions(hwm=5))
    assert leases.sessions.stats(0.0) == {"partitions": [], "clients": []}
    token = joined(leases, 1)
    leases.batches.acknowledge(token, [(0, step) for step in lease_all(leases)[token][:2]])
    stats = leases.sessions.stats(1.5)
    progress = {"rank": 0, "epoch": 0, "position": 0, "done": 2, "steps": STEPS}
    assert stats["partitions"] == [progress]
    (client,) = stats["clients"]
    assert (client["leased"], client["consumed"], client["silent_seconds"]) == (3, 2, 1.5)
