"""Clients that wait for a server, and say so."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.protocol import sockets
from helpers import forked_python
from helpers.ports import free_port
from helpers.served import serving


def test_what_is_waited_for_is_said_once_on_the_standard_error_stream() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    code = f"import gpupipe; gpupipe.connect({address!r}, device='cpu', patience=5)"
    done = forked_python.run(["-c", code])
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
    address, said = f"tcp://127.0.0.1:{free_port()}", threading.Event()
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
    # The server may say that the look of the client at it ended early, if it starts just then.
    waited = [r for r in caplog.records if "waiting for the server" in r.getMessage()]
    assert [r.levelname for r in waited] == ["WARNING"]
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


def test_a_server_behind_a_socket_file(config: dict[str, Any], tmp_path: Path) -> None:
    """Only a server's socket is said to have no keys."""
    with (
        serving(config, address=f"ipc://{tmp_path}/socket") as server,
        pytest.raises(gpupipe.ServerError, match="has no keys"),
    ):
        sockets.describe_listener(server.address, has_keys=True)
