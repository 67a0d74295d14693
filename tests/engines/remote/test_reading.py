"""The place of a client in a pass, the batches that it holds, and a batch that comes in pieces."""

from collections.abc import Iterator

import pytest

from gpupipe.engines.remote.reading import Inbox, Iteration, Reassembly, ReceivedBatch
from gpupipe.protocol import batch_bytes, messages
from gpupipe.protocol.batch_bytes import MalformedMessage, TensorField
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
    head = messages.BatchHeader((0, step), 0, step + 1, False, [], 0, None)
    return ReceivedBatch(head, None)


def test_a_consumer_gets_no_more_than_the_server_counts_on() -> None:
    inbox = Inbox()
    for step in range(6):
        inbox.add(batch(step))
    got = []
    while (taken := inbox.take()) is not None:
        got.append(taken.head.key[1])
        inbox.consume(taken.head.key)
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


KEY = (0, 1)


def head(*sizes: int, key: tuple[int, int] = KEY) -> messages.BatchHeader:
    fields = [TensorField(f"f{n}", "uint8", (size,), False) for n, size in enumerate(sizes)]
    size = batch_bytes.offsets(fields)[1]
    return messages.BatchHeader(key, 0, 4, False, fields, size, None)


def part(offset: int, data: bytes, key: tuple[int, int] = KEY) -> tuple[messages.BatchPart, bytes]:
    return messages.BatchPart(key, offset, len(data), ""), data


@pytest.fixture
def reassembly() -> Iterator[Reassembly]:
    yield Reassembly(2, None)


def test_a_batch_is_whole_when_the_bytes_of_all_fields_are_there(reassembly: Reassembly) -> None:
    """The padding between fields does not come."""
    header = head(3, 2)
    assert reassembly.start(header) is None
    assert reassembly.add_part(*part(0, b"ab")) is None
    assert reassembly.add_part(*part(2, b"c")) is None
    whole = reassembly.add_part(*part(64, b"de"))
    assert whole is not None
    assert whole[0] is header
    content = whole[1].numpy().tobytes()
    assert (content[:3], content[64:66]) == (b"abc", b"de")


def test_an_empty_batch_is_whole_at_once(reassembly: Reassembly) -> None:
    assert reassembly.start(head(0)) is not None


def test_pieces_that_do_not_fit_are_refused(reassembly: Reassembly) -> None:
    for offset, data in ((3, b"xy"), (1, b"again")):
        reassembly.start(head(4))
        assert reassembly.add_part(*part(0, b"ab")) is None
        with pytest.raises(MalformedMessage, match=f"a piece at byte {offset}, past byte 2 of 4"):
            reassembly.add_part(*part(offset, data))


def test_pieces_of_a_batch_that_was_dropped_are_ignored(reassembly: Reassembly) -> None:
    assert reassembly.add_part(*part(0, b"ab")) is None
    reassembly.start(head(2))
    assert reassembly.add_part(*part(0, b"ab", key=(0, 7))) is None
    reassembly.drop_incomplete()
    assert reassembly.add_part(*part(0, b"ab")) is None
