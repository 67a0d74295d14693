import os
from pathlib import Path
from socket import create_connection, create_server
from typing import Any

import pytest
import zmq

from gpupipe.server import flood_guard
from gpupipe.server.flood_guard import TokenBucket
from helpers.forked_python import run


def test_a_connection_whose_number_is_another_files_by_now_is_let_alone(tmp_path: Path) -> None:
    """Also without leaving a copy of that file open."""
    file = (tmp_path / "file").open("wb")
    before = len(os.listdir("/proc/self/fd"))
    assert flood_guard._peer_and_bytes(file.fileno()) is None
    flood_guard._shut_down(file.fileno(), None)
    assert len(os.listdir("/proc/self/fd")) == before
    file.close()
    assert flood_guard._peer_and_bytes(10_000) is None
    with (
        create_server(("127.0.0.1", 0)) as listening,
        create_connection(listening.getsockname()) as one,
    ):
        other, _ = listening.accept()
        other.sendall(b"x" * 1000)
        assert one.recv(2000)
        assert flood_guard._peer_and_bytes(one.fileno()) == (listening.getsockname(), 1000)
        flood_guard._shut_down(one.fileno(), ("127.0.0.1", 1))
        other.sendall(b"x")
        assert one.recv(1), "it is the connection of another peer by now"
        flood_guard._shut_down(one.fileno(), listening.getsockname())
        assert other.recv(1) == b"", "the other side is told"
        other.close()


def test_a_connection_that_is_silent_without_a_session_is_cut() -> None:
    """Silent for over 10 seconds. Whether it has shaken hands makes no difference."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listening:
        listening.linger = 0
        listening.bind("tcp://127.0.0.1:0")
        address = listening.getsockopt_string(zmq.LAST_ENDPOINT)
        sessions: set[bytes] = set()
        guard = flood_guard.FloodGuard(listening, sessions.__contains__, 64)
        with (
            context.socket(zmq.DEALER) as talker,
            context.socket(zmq.DEALER) as client,
            create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20) as idle,
        ):
            for peer in (talker, client):
                peer.linger = 0
                peer.connect(address)
            while len(guard._senders) < 3:
                assert guard.events.poll(20_000)
                guard.check_connections(0.0)
            sessions.add(_receive(client, listening, guard, 0.0))
            _receive(talker, listening, guard, 9.0)
            guard.check_connections(11.0)
            assert guard.num_cut == 1
            while idle.recv(1000):
                pass
            assert len(guard._senders) == 2, "one has a session, and one has sent a message"
            guard.check_connections(20.0)
            assert guard.num_cut == 2
            client.send(b"it goes on")
            assert listening.poll(20_000)
            assert listening.recv_multipart()[1] == b"it goes on"
        guard.close()


def test_memory_goes_back_to_the_system_a_second_after_a_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trims: list[float] = []
    now = 0.0
    monkeypatch.setattr(flood_guard, "malloc_trim", lambda: trims.append(now))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listening:
        listening.linger = 0
        listening.bind("tcp://127.0.0.1:0")
        port = int(listening.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        guard = flood_guard.FloodGuard(listening, lambda route: False, 64)
        with create_connection(("127.0.0.1", port), timeout=20):
            assert guard.events.poll(20_000)
            for now in (0.0, 5.0, 11.0, 11.5, 12.5, 20.0):
                guard.check_connections(now)
        assert guard.num_cut == 1
        assert trims == [12.5]
        guard.close()


def _receive(peer: Any, listening: Any, guard: flood_guard.FloodGuard, now: float) -> bytes:
    """Send a message, and return the route that it came by."""
    peer.send(b"hello")
    head, *frames = listening.recv_multipart(copy=False)
    guard.on_message(head.bytes, frames, now)
    return bytes(head.bytes)


def test_the_limit_of_open_files_is_raised() -> None:
    code = """
import resource
from gpupipe.server.flood_guard import raise_file_limit
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(hard, 2000)))
assert raise_file_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 2000)
"""
    run(["-c", code], check=True)


@pytest.mark.parametrize(
    ("events", "warnings"),
    [
        ("accepted closed", 1),
        ("accepted done closed", 0),
        ("done accepted closed", 0),
        ("done accepted closed accepted closed", 1),
        ("accepted closed accepted closed", 1),
    ],
    ids=[
        "no handshake",
        "a handshake",
        "a handshake that is reported first",
        "such a one and none",
        "none twice",
    ],
)
def test_only_a_connection_that_ends_before_its_handshake_is_warned_of_and_once(
    events: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """ZeroMQ reports from two threads: the end of a handshake may come before its connection."""
    kinds = {
        "accepted": zmq.EVENT_ACCEPTED,
        "done": zmq.EVENT_HANDSHAKE_SUCCEEDED,
        "closed": zmq.EVENT_DISCONNECTED,
    }
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listening:
        guard = flood_guard.FloodGuard(listening, lambda route: False, 64)
        with create_server(("127.0.0.1", 0)) as other:
            for event in events.split():
                guard._on_event({"event": kinds[event], "value": other.fileno()}, 0.0)
        guard.close()
    assert caplog.text.count("ended before ZeroMQ's handshake did") == warnings


@pytest.mark.parametrize("order", ["accepted message closed", "message accepted closed"])
def test_a_connection_that_sent_a_message_is_no_riddle_although_others_shake_hands(
    order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of its handshake came before its connection, while another one was in its own."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listening:
        listening.bind("tcp://127.0.0.1:0")
        guard = flood_guard.FloodGuard(listening, lambda route: False, 64)
        with context.socket(zmq.DEALER) as client, create_server(("127.0.0.1", 0)) as other:
            client.connect(listening.getsockopt_string(zmq.LAST_ENDPOINT))
            client.send(b"hello")
            head, message = listening.recv_multipart(copy=False)
            own = message.get(zmq.SRCFD)
            guard._on_event({"event": zmq.EVENT_ACCEPTED, "value": other.fileno()}, 0.0)
            guard._on_event({"event": zmq.EVENT_HANDSHAKE_SUCCEEDED, "value": 0}, 0.0)
            for step in order.split():
                if step == "message":
                    guard.on_message(head.bytes, [message], 0.0)
                else:
                    kind = zmq.EVENT_ACCEPTED if step == "accepted" else zmq.EVENT_DISCONNECTED
                    guard._on_event({"event": kind, "value": own}, 0.0)
        guard.close()
    assert "ended before ZeroMQ's handshake did" not in caplog.text


def test_a_bucket_refills_up_to_its_burst() -> None:
    bucket = TokenBucket(burst=2, rate=4, last_refill=0.0)
    assert [bucket.take(1, 0.0) for _ in range(3)] == [True, True, False]
    assert bucket.take(1, 0.25)
    assert not bucket.take(1, 0.3)
    assert [bucket.take(1, 100.0) for _ in range(3)] == [True, True, False]


def test_who_asks_for_too_much_gets_what_is_left_away() -> None:
    bucket = TokenBucket(burst=10, rate=1, last_refill=0.0)
    assert not bucket.take(11, 0.0)
    assert not bucket.take(1, 0.0)
