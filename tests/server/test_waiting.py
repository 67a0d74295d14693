"""connect() where no server answers: what it says while it waits, and of what listens in a server's
place.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server, socket
from typing import Any

import pytest
import zmq
from served import serving

import gpupipe
from gpupipe.protocol import keys, peer


def _free_port() -> int:
    with socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_what_is_waited_for_is_said_once_on_the_standard_error_stream() -> None:
    address = f"tcp://127.0.0.1:{_free_port()}"
    code = f"import gpupipe; gpupipe.connect({address!r}, device='cpu', patience=5)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("gpupipe: ")]
    assert said == [
        f"gpupipe: waiting for the server at {address} for up to 5 s: nothing listens there"
    ]
    assert done.stderr.splitlines()[-1].startswith(
        f"gpupipe.errors.ServerError: {address} was silent for 5 s"
    )
    assert done.stdout == ""


def test_a_server_that_comes_later_is_connected_to(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    address, said = f"tcp://127.0.0.1:{_free_port()}", threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: said.set()  # type: ignore[method-assign]  # to wait for it
    logging.getLogger("gpupipe").addHandler(handler)
    found: list[int] = []

    def consume() -> None:
        with gpupipe.connect(address, device="cpu", ids=True) as loader:
            found.extend(i for b in loader for i in b["id"].tolist())

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        assert said.wait(60)
        with serving(config, address=address):
            thread.join(60)
    finally:
        logging.getLogger("gpupipe").removeHandler(handler)
    assert sorted(found) == list(range(23))
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "for up to 60 s" in caplog.text


def test_a_server_that_is_there_is_connected_to_without_a_word(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(config) as server, gpupipe.connect(server.address, device="cpu") as loader:
        assert len(list(loader)) == 8
    assert not caplog.records


def test_why_a_server_does_not_let_in_is_said_while_it_is_waited_for(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rank, taken = (
        {"rank": 1, "world_size": 2},
        pytest.raises(gpupipe.ServerError, match="rank 1 is taken"),
    )
    with (
        serving(config, clients=2) as server,
        gpupipe.connect(server.address, device="cpu", shard=rank),
        taken,
    ):
        gpupipe.connect(server.address, device="cpu", shard=rank, patience=4)
    assert "waiting for the server" in caplog.text
    assert "rank 1 is taken" in caplog.text


@contextmanager
def _bound(kind: int, secret: Path | None = None) -> Iterator[str]:
    with zmq.Context() as context, context.socket(kind) as other:
        other.linger = 0
        if secret is not None:
            keys.secure_server(other, secret)
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
        peer.check(address, has_keys=False)


def test_what_does_not_speak_zeromq_is_no_server() -> None:
    why = r"does not speak ZeroMQ \(it says b'HTTP/1.1 400 Bad Request.*is the port right"
    with (
        _answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        pytest.raises(gpupipe.ServerError, match=why),
    ):
        gpupipe.connect(address, device="cpu", patience=30)


def test_what_may_be_a_server_is_waited_for(tmp_path: Path) -> None:
    with _bound(zmq.ROUTER) as address:
        assert peer.check(address, has_keys=False).text == "it listens, and has not answered yet"
        with pytest.raises(gpupipe.ServerError, match="has no keys: leave out key and server_key"):
            peer.check(address, has_keys=True)
    with _bound(zmq.ROUTER, keys.new(tmp_path, "server")[1]) as address:
        for has_keys in (False, True):
            assert (
                "only those whose keys it knows (key, server_key)"
                in peer.check(address, has_keys).text
            )
    with _answering(b"") as address:
        assert (
            peer.check(address, has_keys=False).text == "something listens there, and says nothing"
        )
    assert peer.check(f"ipc://{tmp_path}/nothing", has_keys=False).text == "nothing listens there"
    assert (
        peer.check(f"tcp://127.0.0.1:{_free_port()}", has_keys=False).text
        == "nothing listens there"
    )
    assert (
        "cannot be resolved" in peer.check("tcp://no-such-host.invalid:5557", has_keys=False).text
    )


def test_a_server_behind_a_socket_file(config: dict[str, Any], tmp_path: Path) -> None:
    with serving(config, address=f"ipc://{tmp_path}/socket") as server:
        assert peer.look_at(server.address).socket_type == "ROUTER"
