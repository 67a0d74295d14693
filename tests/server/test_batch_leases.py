"""Which client leases which batch."""

import pytest

from gpupipe.server.batch_leases import Leased, MustWait, NotNeeded
from gpupipe.server.options import ServerOptions
from gpupipe.server.sessions import Sessions
from helpers.lease_tables import STEPS, joined


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(ServerOptions(hwm=2), lambda *place: STEPS, (0, 0))


def test_a_batch_goes_to_the_reader_with_the_most_credits(sessions: Sessions) -> None:
    first, second = joined(sessions, 1), joined(sessions, 2)
    partition = sessions.state.clients[first].partition
    got = []
    for _ in range(4):
        key = sessions.batches.take(partition)
        assert key is not None
        leased = sessions.batches.lease(key)
        assert isinstance(leased, Leased)
        got.append(leased.client.token)
    assert sorted(got[:2]) == sorted(got[2:]) == [first, second]
    key = sessions.batches.take(partition)
    assert key is not None
    assert sessions.batches.lease(key) == MustWait(), "nobody has credits"


def test_a_batch_waits_for_earlier_ones(sessions: Sessions) -> None:
    partition = sessions.state.clients[joined(sessions, 1)].partition
    one, two = sessions.batches.take(partition), sessions.batches.take(partition)
    assert one == (0, 0)
    assert two == (0, 1)
    assert not sessions.batches.is_first(two)
    assert sessions.batches.lease(two) == MustWait()
    sessions.batches.requeue_unmade(one)
    assert sessions.batches.lease(two) == MustWait()
    assert sessions.batches.take(partition) == one
    assert isinstance(sessions.batches.lease(one), Leased)
    assert isinstance(sessions.batches.lease(two), Leased)


def test_a_batch_that_no_pass_needs_is_not_leased(sessions: Sessions) -> None:
    joined(sessions, 1)
    for key in ((0, 0), (5, 0)):
        assert sessions.batches.lease(key) == NotNeeded()


def test_the_last_batch_of_a_client_is_known_as_such() -> None:
    sessions = Sessions(ServerOptions(), lambda *place: STEPS, (0, 0))
    token = joined(sessions, 1)
    partition = sessions.state.clients[token].partition
    for step in range(STEPS):
        sessions.batches.take(partition)
        leased = sessions.batches.lease((0, step))
        assert isinstance(leased, Leased)
        assert leased.is_last == (step == STEPS - 1)
        sessions.batches.acknowledge(token, [(0, step)])
