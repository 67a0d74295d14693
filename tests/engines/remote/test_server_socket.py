"""The socket to a server: messages both ways, and the pipe that ends a wait."""

import threading
import time
from pathlib import Path

import pytest
import zmq

from gpupipe.engines.remote.server_socket import ServerSocket
from gpupipe.engines.remote.session import ConnectionOptions
from gpupipe.errors import ServerError
from gpupipe.protocol import codec, messages


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/socket"


def test_messages_are_sent_and_received(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        server.bind(address)
        client = ServerSocket(ConnectionOptions(address))
        deadline = time.monotonic() + 20
        while not client.send(messages.Ping()):  # nothing is sent before the socket is connected
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert server.poll(20_000)
        route, frame = server.recv_multipart()
        assert isinstance(codec.decode_from_client([frame]), messages.Ping)
        for number in range(70):
            server.send_multipart([route, b"%d" % number])
        received: list[bytes] = []
        while len(received) < 70:
            assert client.wait_for_message(20)
            some = [frames[0].bytes for frames in client.receive()]
            assert 0 < len(some) <= 64
            received += some
        assert received == [b"%d" % number for number in range(70)]
        assert list(client.receive()) == []
        client.close()
        client.close_waker()


def test_a_wait_ends_early_when_it_is_woken(address: str) -> None:
    client = ServerSocket(ConnectionOptions(address))
    started = time.monotonic()
    timer = threading.Timer(0.05, client.wake)
    timer.start()
    assert not client.wait(60)
    assert time.monotonic() - started < 30
    timer.join()
    assert not client.wait(0), "nothing is left in the pipe"
    client.close()
    client.close_waker()
    client.wake()


def test_a_wrong_address_is_named() -> None:
    with pytest.raises(ServerError, match="nowhere"):
        ServerSocket(ConnectionOptions("nowhere"))
