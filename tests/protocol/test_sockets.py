"""What listens at an address, and the waking of a thread that polls."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server

import pytest
import zmq

import gpupipe
from gpupipe.errors import ServerError
from gpupipe.protocol import peers
from gpupipe.protocol.sockets import Waker, describe_listener, dial
from helpers.ports import free_port


@contextmanager
def _bound(kind: int, secret: Path | None = None) -> Iterator[str]:
    with zmq.Context() as context, context.socket(kind) as other:
        other.linger = 0
        if secret is not None:
            peers.secure_server(other, secret)
        yield f"tcp://127.0.0.1:{other.bind_to_random_port('tcp://127.0.0.1')}"


@contextmanager
def _answering(answer: bytes) -> Iterator[str]:
    """A server of another protocol: it says `answer` to each connection, and ends it."""
    with create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            with suppress(OSError):
                while True:
                    connection = listening.accept()[0]
                    with connection, suppress(OSError):
                        connection.recv(4096)
                        connection.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(2)
            thread.join()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (zmq.PUSH, "speaks Fuel's protocol"),
        (zmq.PUB, "is a ZeroMQ PUB socket"),
        (zmq.REP, "is a ZeroMQ REP socket"),
    ],
)
def test_sockets_of_other_kinds_are_no_servers(kind: int, why: str) -> None:
    with _bound(kind) as address, pytest.raises(gpupipe.ServerError, match=why):
        describe_listener(address, has_keys=False)


def test_what_does_not_speak_zeromq_is_no_server() -> None:
    why = r"does not speak ZeroMQ \(it says b'HTTP/1.1 400 Bad Request.*is the port right"
    with (
        _answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        pytest.raises(gpupipe.ServerError, match=why),
    ):
        gpupipe.connect(address, device="cpu", patience=30)


def test_what_may_be_a_server_is_waited_for(tmp_path: Path) -> None:
    with _bound(zmq.ROUTER) as address:
        assert describe_listener(address, has_keys=False) == "it listens, and has not answered yet"
        with pytest.raises(gpupipe.ServerError, match="has no keys: leave out key and server_key"):
            describe_listener(address, has_keys=True)
    with _bound(zmq.ROUTER, peers.create_keys(tmp_path, "server")[1]) as address:
        for has_keys in (False, True):
            assert "only those whose keys it knows (key, server_key)" in describe_listener(
                address, has_keys
            )
    with _answering(b"") as address:
        assert (
            describe_listener(address, has_keys=False)
            == "something listens there, and says nothing"
        )
    assert describe_listener(f"ipc://{tmp_path}/nothing", has_keys=False) == "nothing listens there"
    assert (
        describe_listener(f"tcp://127.0.0.1:{free_port()}", has_keys=False)
        == "nothing listens there"
    )
    assert "cannot be resolved" in describe_listener(
        "tcp://no-such-host.invalid:5557", has_keys=False
    )


def test_a_waker_that_is_closed_writes_into_nobodys_file() -> None:
    waker = Waker()
    waker.wake()
    waker.wake()
    assert os.read(waker.descriptor, 10) == b"11"
    waker.clear()
    numbers = {waker.descriptor, waker._in}
    waker.close()
    ends = os.pipe2(os.O_NONBLOCK)
    assert set(ends) == numbers, "another pipe has its descriptors now"
    waker.wake()
    waker.close()
    with pytest.raises(BlockingIOError):
        os.read(ends[0], 1)
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1", "nowhere", "tcp://127.0.0.1:port"])
def test_what_is_no_address_is_an_error_and_leaves_no_context(address: str) -> None:
    context = zmq.Context()
    with pytest.raises(ServerError, match=r"is no address of a server.*tcp://HOST:PORT"):
        dial(context, address, None, None)
    assert context.closed


def test_keys_that_cannot_be_read_leave_no_context(tmp_path: Path) -> None:
    context, key = zmq.Context(), tmp_path / "none.key_secret"
    with pytest.raises(ServerError, match="no such key file"):
        dial(context, "tcp://127.0.0.1:1", key, key)
    assert context.closed
