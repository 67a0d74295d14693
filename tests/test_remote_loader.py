"""The arguments of connect() and ServerDataStream; tests/client and tests/server have servers."""

import socket
from typing import Any

import pytest

import gpupipe


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hwm": 0}, "hwm"),
        ({"transport": "udp"}, "transport"),
        ({"patience_": 3}, "patience_"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_sent(
    arguments: dict[str, Any], message: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        with pytest.raises(gpupipe.ConfigError, match=message):
            gpupipe.connect(f"tcp://127.0.0.1:{port}", **arguments)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_an_address_of_another_form_is_refused() -> None:
    with pytest.raises(gpupipe.ConfigError, match="localhost:5557"):
        gpupipe.connect("localhost:5557")
