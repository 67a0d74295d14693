"""Which client leases which batch."""

from __future__ import annotations

import pytest

from gpupipe.server.batch_leases import Leased, MustWait, NotNeeded
from gpupipe.server.leases import Leases
from gpupipe.server.options import ServerOptions
from helpers.lease_tables import STEPS, joined


@pytest.fixture
def leases() -> Leases:
    return Leases(ServerOptions(hwm=2), lambda *place: STEPS, (0, 0))


def test_a_batch_goes_to_the_reader_with_the_most_credits(leases: Leases) -> None:
    first, second = joined(leases, 1), joined(leases, 2)
    partition = leases.state.clients[first].partition
    got = []
    for _ in range(4):
        key = leases.batches.take(partition)
        assert key is not None
        leased = leases.batches.lease(key)
        assert isinstance(leased, Leased)
        got.append(leased.client.token)
    assert sorted(got[:2]) == sorted(got[2:]) == [first, second]
    key = leases.batches.take(partition)
    assert key is not None
    assert leases.batches.lease(key) == MustWait(), "nobody has credits"


def test_a_batch_waits_for_earlier_ones(leases: Leases) -> None:
    partition = leases.state.clients[joined(leases, 1)].partition
    one, two = leases.batches.take(partition), leases.batches.take(partition)
    assert one == (0, 0)
    assert two == (0, 1)
    assert not leases.batches.is_first(two)
    assert leases.batches.lease(two) == MustWait()
    leases.batches.requeue_unmade(one)
    assert leases.batches.lease(two) == MustWait()
    assert leases.batches.take(partition) == one
    assert isinstance(leases.batches.lease(one), Leased)
    assert isinstance(leases.batches.lease(two), Leased)


def test_a_batch_that_no_pass_needs_is_not_leased(leases: Leases) -> None:
    joined(leases, 1)
    for key in ((0, 0), (5, 0)):
        assert leases.batches.lease(key) == NotNeeded()


def test_the_last_batch_of_a_client_is_known_as_such() -> None:
    leases = Leases(ServerOptions(), lambda *place: STEPS, (0, 0))
    token = joined(leases, 1)
    partition = leases.state.clients[token].partition
    for step in range(STEPS):
        leases.batches.take(partition)
        leased = leases.batches.lease((0, step))
        assert isinstance(leased, Leased)
        assert leased.is_last == (step == STEPS - 1)
        leases.batches.acknowledge(token, [(0, step)])
