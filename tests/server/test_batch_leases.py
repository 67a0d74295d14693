"""Which client leases which batch."""

from __future__ import annotations

import pytest

from gpupipe.server.client_state import LeaseRules
from gpupipe.server.leases import Leases
from helpers.lease_tables import STEPS, joined


@pytest.fixture
def leases() -> Leases:
    return Leases(LeaseRules(hwm=2), lambda *place: STEPS, (0, 0))


def test_a_batch_goes_to_the_reader_with_the_most_credits(leases: Leases) -> None:
    first, second = joined(leases, 1), joined(leases, 2)
    partition = leases.clients[first].partition
    got = []
    for _ in range(4):
        key = leases.take(partition)
        assert key is not None
        leased = leases.lease(key)
        assert leased is not None
        got.append(leased[0].token)
    assert sorted(got[:2]) == sorted(got[2:]) == [first, second]
    key = leases.take(partition)
    assert key is not None
    assert leases.lease(key) is None, "nobody has credits"


def test_a_batch_waits_for_earlier_ones(leases: Leases) -> None:
    partition = leases.clients[joined(leases, 1)].partition
    one, two = leases.take(partition), leases.take(partition)
    assert one == (0, 0)
    assert two == (0, 1)
    assert not leases.is_first(two)
    assert leases.lease(two) is None
    leases.requeue_unmade(one)
    assert leases.lease(two) is None
    assert leases.take(partition) == one
    assert leases.lease(one)
    assert leases.lease(two)


def test_a_batch_that_no_pass_needs_is_not_leased(leases: Leases) -> None:
    joined(leases, 1)
    for key in ((0, 0), (5, 0)):
        with pytest.raises(KeyError):
            leases.lease(key)


def test_the_last_batch_of_a_client_is_known_as_such() -> None:
    leases = Leases(LeaseRules(), lambda *place: STEPS, (0, 0))
    token = joined(leases, 1)
    partition = leases.clients[token].partition
    for step in range(STEPS):
        leases.take(partition)
        leased = leases.lease((0, step))
        assert leased is not None
        assert leased[1] == (step == STEPS - 1)
        leases.acknowledge(token, [(0, step)])
