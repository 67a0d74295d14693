import os
from typing import Any

import pytest
from msgspec.structs import replace

import gpupipe
from gpupipe.engines.remote.reading import ReceivedBatch
from gpupipe.engines.remote.session import (
    ConnectionOptions,
    Session,
    find_differences,
    rebuild_error,
    wrap_error,
)
from gpupipe.errors import EngineError, ServerError
from gpupipe.protocol import messages
from helpers.scripted_server import keep

ADDRESS = "tcp://somewhere:1"


def opened(history: str, leased: list[messages.Key]) -> messages.SessionOpened:
    return messages.SessionOpened(messages.VERSION, history * 32, 1, leased, 0, 0, 0, 1, {})


def reading() -> Session:
    """A session in pass 0, with two batches that wait for the consumer."""
    session = Session(ConnectionOptions(ADDRESS))
    session.reopen(opened("a", []))
    session.start_iteration(0, 0, keep, False)
    session.handle(messages.IterationStarted(1, 0), False)
    for step in range(2):
        head = messages.BatchHeader((0, step), 0, step + 1, False, [], 0, None)
        session.inbox.add(ReceivedBatch(head, step))
    session.outgoing.clear()
    return session


def test_a_reconnect_keeps_what_the_server_still_leases_to_it() -> None:
    session = reading()
    session.reopen(opened("a", [(0, 1)]))
    assert session.inbox.keys == [(0, 1)]
    assert list(session.outgoing) == [messages.StartIteration(1, 0, 0, 0)]


def test_a_server_with_another_history_leaves_it_nothing() -> None:
    session = reading()
    session.reopen(opened("b", [(0, 1)]))
    assert session.inbox.keys == []
    assert list(session.outgoing) == [messages.StartIteration(1, 0, 0, -1)]


def test_the_end_of_a_pass_starts_the_next_one() -> None:
    session = reading()
    taken = session.take()
    assert taken is not None
    session.handle(messages.PassEnded(0), False)
    assert session.take() is None
    assert list(session.outgoing) == [messages.StartIteration(2, 1, 0, -1)]
    session.start_iteration(1, 0, keep, False)
    assert len(session.outgoing) == 1, "it goes on with that pass"


def test_an_error_of_the_server_lasts_until_a_server_answers_again() -> None:
    session = reading()
    session.handle(messages.Failed("EngineError", "broken", "", "", True), False)
    assert list(session.outgoing) == [messages.EndIteration()]
    session.start_iteration(0, 0, keep, False)
    assert isinstance(session.error, gpupipe.EngineError)
    session.reopen(opened("a", []))
    assert session.error is None


def test_an_error_of_an_iteration_ends_with_it() -> None:
    session = reading()
    session.handle(messages.Failed("SampleError", "", "a.jpg", "cut", False), False)
    assert isinstance(session.error, gpupipe.SampleError)
    session.start_iteration(0, 0, keep, False)
    assert session.error is None


@pytest.mark.parametrize("is_impatient", [False, True])
def test_a_temporary_refusal_is_an_error_only_to_the_impatient(is_impatient: bool) -> None:
    session = Session(ConnectionOptions(ADDRESS))
    session.handle(messages.Refused("full", True), is_impatient)
    assert session.refusal == "full"
    assert (session.error is not None) == is_impatient


@pytest.mark.parametrize("kind", ["ConfigError", "Exception", "SystemExit"])
def test_errors_of_other_classes_become_server_errors(kind: str) -> None:
    error = rebuild_error(messages.Failed(kind, "what happened", "", ""))
    assert type(error) is gpupipe.ServerError
    assert str(error) == "what happened"


def test_a_server_that_serves_something_else_ends_the_connection() -> None:
    session = Session(ConnectionOptions(ADDRESS))
    session.reopen(replace(opened("a", []), description={"loader": {"seed": 5}}))
    session.reopen(replace(opened("b", []), description={"loader": {"seed": 6}}))
    session.start_iteration(0, 0, keep, False)
    error = session.error
    assert isinstance(error, gpupipe.ServerError)
    assert str(error).startswith(f"{ADDRESS} was started again")
    assert "(seed: 5 before, 6 now)" in str(error)


def test_a_client_that_shared_its_pass_does_not_continue_it_without_a_record() -> None:
    session = reading()
    session.handle(messages.IterationStarted(1, 0, True), False)
    session.reopen(opened("b", []))
    assert "without a record" in str(session.error)
    assert list(session.outgoing) == []
    session.start_iteration(1, 0, keep, False)
    assert session.error is None
    assert list(session.outgoing) == [messages.StartIteration(2, 1, 0, -1)]


DESCRIPTION = {
    "name": "little",
    "data": {"fingerprint": "d1", "count": 5},
    "pipeline": {"fingerprint": "p1", "tail": 0},
    "batch": {"fingerprint": "b1"},
    "mode": "share",
    "loader": {"seed": 5, "subset": "/a/file"},
    "selection": {"settings": {"repeats": 1}},
}


def described(**changes: Any) -> messages.SessionOpened:
    return messages.SessionOpened(1, "0" * 32, 1, [], 0, 0, 0, 1, DESCRIPTION | changes)


def test_the_same_work_has_no_differences() -> None:
    assert find_differences(described(), described()) == ""
    assert (
        find_differences(described(), replace(described(), pid=2, history="1" * 32, epoch=3)) == ""
    )
    assert find_differences(described(), described(name="other")) == "", "a name is no work"
    other_file = described(loader={"seed": 5, "subset": "/another/file"})
    assert find_differences(described(), other_file) == "", "the settings of the selection count"


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"data": {"fingerprint": "d2"}}, "data: d1 before, d2 now"),
        ({"pipeline": {"fingerprint": "p2", "tail": 0}}, "pipeline: p1 before, p2 now"),
        ({"pipeline": {"fingerprint": "p1", "tail": 2}}, "steps left to clients: 0 before, 2 now"),
        ({"batch": {"fingerprint": "b2"}}, "batch: b1 before, b2 now"),
        ({"mode": "broadcast"}, "mode: share before, broadcast now"),
        ({"loader": {"seed": 6}}, "seed: 5 before, 6 now"),
        ({"loader": {}}, "seed: 5 before, None now"),
        ({"selection": {"settings": {"repeats": 2}}}, "repeats: 1 before, 2 now"),
        ({"selection": {}}, "repeats: 1 before, None now"),
    ],
)
def test_differences_are_named(changes: dict[str, Any], difference: str) -> None:
    assert find_differences(described(), described(**changes)) == difference


def test_another_rank_is_other_work() -> None:
    other = replace(described(), rank=1, world_size=2)
    assert (
        find_differences(described(), other) == "rank: 0 before, 1 now; world_size: 1 before, 2 now"
    )


def test_requests_are_numbered_and_name_the_process() -> None:
    session = Session(ConnectionOptions(ADDRESS, rank=1, world_size=2, hwm=7))
    first = session.request(True)
    assert (first.version, first.token) == (messages.VERSION, session.token)
    assert (first.rank, first.world_size, first.hwm, first.pid) == (1, 2, 7, os.getpid())
    assert (first.held, first.consumed, first.history) == ([], [], "")
    assert first.name.endswith(f":{os.getpid()}")
    second = session.request(False)
    assert first.number < second.number
    assert first.token == second.token
    assert (first.wants_shared_memory, second.wants_shared_memory) == (True, False)


def test_a_request_names_what_is_held_and_consumed_and_closes_the_session() -> None:
    session = reading()
    taken = session.take()
    assert taken is not None
    session.inbox.consume(taken.head.key)
    request = session.request(True)
    assert (request.held, request.consumed) == ([(0, 1)], [(0, 0)])
    assert request.history == "a" * 32
    assert not session.is_open


def test_an_error_of_the_server_names_where_it_happened() -> None:
    cause = ValueError("odd")
    error = wrap_error("tcp://127.0.0.1:1 sent a batch that cannot be read", cause)
    assert isinstance(error, ServerError)
    assert str(error) == "tcp://127.0.0.1:1 sent a batch that cannot be read: ValueError('odd')"
    assert error.__cause__ is cause


def test_no_server_is_to_blame_for_a_machine_without_memory() -> None:
    error = wrap_error("tcp://127.0.0.1:1", MemoryError())
    assert isinstance(error, EngineError)
    assert "127.0.0.1" not in str(error)


def test_an_error_of_gpupipe_stays_as_it_is() -> None:
    error = EngineError("the GPU is lost")
    assert wrap_error("tcp://127.0.0.1:1", error) is error
