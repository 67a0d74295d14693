"""The place of a client in a pass, and the batches that it holds."""

from __future__ import annotations

from gpupipe.client.iteration import Inbox, Iteration, ReceivedBatch
from gpupipe.protocol import messages
from gpupipe.protocol.messages import IterationStarted, StartIteration


def test_an_iteration_enters_the_pass_that_the_server_names() -> None:
    iteration = Iteration()
    assert iteration.start(3, 40, is_explicit=True) == StartIteration(1, 3, 40, -1, True)
    iteration.enter(IterationStarted(7, 5))
    assert iteration.pass_number == -1, "the answer to another iteration"
    iteration.enter(IterationStarted(1, 5))
    assert (iteration.pass_number, iteration.is_explicit) == (5, False)


def test_the_next_pass_starts_at_the_end_of_one() -> None:
    iteration = Iteration()
    iteration.start(0, 0)
    iteration.enter(IterationStarted(1, 4))
    assert iteration.end_pass(3) is None, "another pass"
    assert iteration.end_pass(4) == StartIteration(2, 1, 0, -1)
    assert iteration.is_at_end
    assert not iteration.continue_at(5, 0), "the consumer goes elsewhere"
    assert not iteration.continue_at(1, 0), "and the end is behind it"


def test_a_consumer_continues_with_the_pass_that_has_started() -> None:
    iteration = Iteration()
    iteration.start(0, 0)
    iteration.enter(IterationStarted(1, 4))
    iteration.end_pass(4)
    assert iteration.continue_at(1, 0)
    assert (iteration.number, iteration.position, iteration.is_at_end) == (2, (1, 0), False)


def test_a_stopped_iteration_enters_nothing_and_resumes_nowhere() -> None:
    iteration = Iteration()
    iteration.start(0, 0)
    assert iteration.stop()
    assert not iteration.stop()
    iteration.enter(IterationStarted(1, 4))
    assert iteration.pass_number == -1
    assert iteration.resume(True) is None


def test_after_a_reconnect_it_names_its_pass_only_to_a_server_that_knows_it() -> None:
    iteration = Iteration()
    iteration.start(2, 8)
    iteration.enter(IterationStarted(1, 4))
    assert iteration.resume(True) == StartIteration(1, 2, 8, 4)
    assert iteration.resume(False) == StartIteration(1, 2, 8, -1)


def test_a_pass_that_was_shared_stays_shared_to_its_end() -> None:
    iteration = Iteration()
    iteration.start(0, 0)
    iteration.enter(IterationStarted(1, 4))
    assert not iteration.is_shared
    iteration.enter(IterationStarted(1, 4, True))
    iteration.enter(IterationStarted(1, 4))
    assert iteration.is_shared, "others have left, with what they consumed"
    iteration.end_pass(4)
    assert not iteration.is_shared


def batch(step: int) -> ReceivedBatch:
    return ReceivedBatch((0, step), 0, step + 1, False, None)


def test_a_consumer_gets_no_more_than_the_server_counts_on() -> None:
    inbox = Inbox()
    for step in range(6):
        inbox.add(batch(step))
    got = []
    while (taken := inbox.take()) is not None:
        got.append(taken.key[1])
        inbox.consume(taken.key)
    assert got == list(range(messages.MAX_UNACKED)), "nothing was confirmed"
    inbox.revoke([(0, 4), (0, 5)])
    inbox.confirm([(0, 0)])
    assert inbox.take() == batch(3)
    assert inbox.take() is None
    inbox.confirm([(0, 1), (0, 2)])
    assert inbox.take() is None, "what was revoked is not handed out"
    assert not inbox.consume((0, 4))


def test_a_batch_that_the_consumer_is_done_with_does_not_come_again() -> None:
    """It was sent again before the server knew."""
    inbox = Inbox()
    inbox.add(batch(0))
    assert inbox.take() == batch(0)
    inbox.consume((0, 0))
    inbox.add(batch(0))
    assert inbox.take() is None
