"""The batches that a client holds."""

from __future__ import annotations

from gpupipe.client.inbox import Inbox
from gpupipe.protocol import messages


def test_a_consumer_gets_no_more_than_the_server_counts_on() -> None:
    holding: Inbox[int] = Inbox()
    for step in range(6):
        holding.arrive((0, step), step)
    got = []
    while (taken := holding.take()) is not None:
        got.append(taken[1])
        holding.consume(taken[0])
    assert got == list(range(messages.MAX_UNACKED)), "nothing was confirmed"
    holding.revoke([(0, 4), (0, 5)])
    holding.confirm([(0, 0)])
    assert holding.take() == ((0, 3), 3)
    assert holding.take() is None
    holding.confirm([(0, 1), (0, 2)])
    assert holding.take() is None, "what was revoked is not handed out"
    assert not holding.consume((0, 4))


def test_a_batch_that_the_consumer_is_done_with_does_not_come_again() -> None:
    """It was sent again before the server knew."""
    inbox: Inbox[int] = Inbox()
    inbox.arrive((0, 0), 0)
    assert inbox.take() == ((0, 0), 0)
    inbox.consume((0, 0))
    inbox.arrive((0, 0), 0)
    assert inbox.take() is None
