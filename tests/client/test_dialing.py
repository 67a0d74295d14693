"""A client's socket, and what it says first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq

from gpupipe.client.dialing import ConnectionOptions, dial, session_request
from gpupipe.errors import ServerError
from gpupipe.protocol import messages


def test_requests_are_numbered_and_name_the_process() -> None:
    options = ConnectionOptions("tcp://127.0.0.1:1", rank=1, world_size=2, hwm=7)
    request = session_request(options, "a" * 32)
    first = request(True, [], [], "")
    second = request(False, [(0, 3)], [(0, 2)], "b" * 32)
    assert (first.version, first.token) == (messages.VERSION, "a" * 32)
    assert (first.rank, first.world_size, first.hwm, first.pid) == (1, 2, 7, os.getpid())
    assert first.number < second.number
    assert (first.wants_shared_memory, second.wants_shared_memory) == (True, False)
    assert (second.held, second.consumed, second.history) == ([(0, 3)], [(0, 2)], "b" * 32)
    assert first.name.endswith(f":{os.getpid()}")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1", "nowhere", "tcp://127.0.0.1:port"])
def test_what_is_no_address_is_an_error_and_leaves_no_context(address: str) -> None:
    context = zmq.Context()
    with pytest.raises(ServerError, match=r"is no address of a server.*tcp://HOST:PORT"):
        dial(context, ConnectionOptions(address))
    assert context.closed


def test_keys_that_cannot_be_read_leave_no_context(tmp_path: Path) -> None:
    context, key = zmq.Context(), tmp_path / "none.key_secret"
    with pytest.raises(ServerError, match="is no key"):
        dial(context, ConnectionOptions("tcp://127.0.0.1:1", key=key, server_key=key))
    assert context.closed
