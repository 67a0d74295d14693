"""A client against servers that do what a server of gpupipe does not: say nonsense, speak another
version, send what the client must not take.
"""

import threading
import time
from typing import Any

import pytest

import gpupipe
from gpupipe.engines.remote.connection import Connection
from gpupipe.engines.remote.reading import ReceivedBatch
from gpupipe.engines.remote.session import ConnectionOptions
from gpupipe.protocol import batch_bytes, messages
from helpers.scripted_server import FIELDS, HISTORY, Other, begin, keep, other_side


def test_between_a_hello_and_its_welcome_no_batch_counts() -> None:
    """The server takes back what the Hello did not name, so others may have it."""

    def play(other: Other) -> None:
        other.open()
        other.batch(0)
        other.hear(messages.Acknowledge)
        other.say(messages.Confirm([(0, 0)]))
        nowhere = batch_bytes.Slot(7, 0, 4096)
        other.say(messages.BatchHeader((0, 1), 0, 4, False, FIELDS, 16, nowhere))
        again = other.hear(messages.OpenSession)
        assert (again.held, again.consumed) == ([], [])
        other.batch(2)
        assert other.let_in([]).pass_number == 0, "it goes on in its run"
        other.batch(3)
        other.close()

    with other_side(play) as address:
        connection = begin(address)
        found = []
        for _ in range(2):
            arrived = connection.next()
            assert isinstance(arrived, ReceivedBatch)
            found.append(arrived.batch["id"].tolist())
            connection.acknowledge(arrived.head.key)
        connection.close()
    assert found == [[0, 0], [3, 3]]


def test_what_waits_and_is_anothers_by_now_is_dropped() -> None:
    """A Welcome says what is still the client's own, of what its Hello said that it holds."""

    def play(other: Other) -> None:
        other.open()
        for step in range(3):
            other.batch(step)
        time.sleep(0.3)  # a client says Hello no oftener than this
        other.say(messages.UnknownSession())
        assert other.hear(messages.OpenSession).held == [(0, 0), (0, 1), (0, 2)]
        other.let_in([(0, 0), (0, 2)])
        settled.set()
        other.hear(messages.Acknowledge)
        other.hear(messages.Acknowledge)
        other.close()

    settled = threading.Event()
    with other_side(play) as address:
        connection = begin(address)
        first = connection.next()
        assert first is not None
        assert settled.wait(20)
        connection.acknowledge(first.head.key)
        second = connection.next()
        assert second is not None
        assert (first.head.key, second.head.key) == ((0, 0), (0, 2))
        connection.acknowledge(second.head.key)
        connection.close()


def test_a_session_that_is_closed_is_not_opened_again() -> None:
    """By a late answer to a heartbeat from before the session was known."""

    def play(other: Other) -> None:
        other.open()
        time.sleep(0.3)  # a client says Hello no oftener than this
        other.batch(0)
        other.hear(messages.CloseSession)
        other.say(messages.UnknownSession())
        heard.append(other.hear(messages.CloseSession, messages.OpenSession))
        other.say(messages.SessionClosed())

    heard: list[Any] = []
    with other_side(play) as address:
        connection = begin(address)
        assert connection.next() is not None
        connection.close()
    assert [type(message) for message in heard] == [messages.CloseSession]


def test_an_exception_of_any_kind_reaches_the_consumer_with_its_cause() -> None:
    """In the place of the batch that failed. The thread lives on, and serves the next iteration."""

    def finish(tensors: Any, epoch: int) -> Any:
        if tensors["id"].tolist() == [1, 1]:
            raise ValueError("no such number")
        return tensors

    def play(other: Other) -> None:
        other.open()
        for step in range(3):
            other.batch(step)
        other.say(messages.Confirm([]))
        begin = other.hear(messages.StartIteration)
        other.say(messages.IterationStarted(begin.iteration, 0))
        other.batch(2)
        other.close()

    with other_side(play) as address:
        connection = Connection(ConnectionOptions(address, patience=10.0))
        connection.open()
        connection.start_iteration(0, 0, finish)
        first = connection.next()
        assert first is not None
        assert first.head.key == (0, 0)
        with pytest.raises(
            gpupipe.ServerError, match=r"what is left to the client failed.*no such number"
        ) as raised:
            connection.next()
        assert isinstance(raised.value.__cause__, ValueError)
        connection.start_iteration(0, 4, finish)
        third = connection.next()
        assert third is not None
        assert third.head.key == (0, 2)
        connection.close()


def test_a_gpu_of_the_client_that_fails_is_not_the_servers_fault() -> None:
    def play(other: Other) -> None:
        other.open()
        other.batch(0)
        other.close()

    def finish(tensors: Any, epoch: int) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with")

    with other_side(play) as address:
        connection = Connection(ConnectionOptions(address, patience=10.0))
        connection.open()
        connection.start_iteration(0, 0, finish)
        with pytest.raises(
            gpupipe.EngineError, match=r"^the GPU, or its driver, failed \(CUDA.*start"
        ):
            connection.next()
        connection.close()


def test_a_message_that_cannot_be_taken_reaches_the_consumer_with_its_cause() -> None:
    """Here for want of page-locked memory: there are not so many GPUs."""

    def play(other: Other) -> None:
        other.open()
        other.batch(0)
        other.close()

    with other_side(play) as address:
        connection = Connection(ConnectionOptions(address, patience=10.0, gpu=100))
        connection.open()
        connection.start_iteration(0, 0, keep)
        with pytest.raises(
            (gpupipe.ServerError, gpupipe.EngineError),
            match=f"a message of {address} cannot be taken|invalid device ordinal",
        ) as raised:
            connection.next()
        assert isinstance(raised.value.__cause__, (RuntimeError, AssertionError))
        connection.close()


def test_good_bye_is_said_until_it_is_heard() -> None:
    """On whatever connection there is, with what was consumed and not confirmed."""

    def play(other: Other) -> None:
        other.open()
        other.batch(0)
        assert other.hear(messages.CloseSession).consumed == [(0, 0)]
        assert other.hear(messages.CloseSession).consumed == [(0, 0)], "the first was not answered"
        other.say(messages.SessionClosed())

    with other_side(play) as address:
        connection = begin(address)
        arrived = connection.next()
        assert arrived is not None
        connection.acknowledge(arrived.head.key)
        connection.close()
        connection.close()
        with pytest.raises(gpupipe.ServerError, match="was closed"):
            connection.next()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\xc1 no message", "does not speak as a server of gpupipe does"),
        (
            messages.SessionOpened(messages.VERSION + 1, HISTORY, 1, [], 0, 0, 0, 1, {}),
            f"speaks version {messages.VERSION + 1} of the protocol",
        ),
        (
            messages.SessionOpened(messages.VERSION, HISTORY, 1, [], 0, 0, 0, 1, {"name": 3}),
            "in a way that is not understood",
        ),
        (messages.Refused("not today", False), "not today"),
    ],
    ids=["noise", "version", "about", "refused"],
)
def test_a_server_that_is_none_is_an_error(answer: Any, why: str) -> None:
    def play(other: Other) -> None:
        other.hear(messages.OpenSession)
        other.say(answer)
        if "understood" in why:
            other.close()

    with other_side(play) as address, pytest.raises(gpupipe.ServerError, match=why):
        gpupipe.connect(address, device="cpu", patience=5)


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([(12, 8)], "at byte 12, past byte 0 of 16"),
        ([(0, 8), (0, 8)], "at byte 0, past byte 8 of 16"),
    ],
    ids=str,
)
def test_a_batch_whose_pieces_do_not_fit_is_an_error(
    pieces: list[tuple[int, int]], why: str
) -> None:
    def play(other: Other) -> None:
        other.open()
        other.say(messages.BatchHeader((0, 0), 0, 2, False, FIELDS, 16, None))
        for start, size in pieces:
            other.say(messages.BatchPart((0, 0), start, size, ""), bytes(size))
        other.close()

    with other_side(play) as address:
        connection = begin(address)
        with pytest.raises(gpupipe.ServerError, match=why):
            connection.next()
        connection.close()
