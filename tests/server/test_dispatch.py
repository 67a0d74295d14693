"""When a server whose engine failed may close: as soon as all connected clients know."""

from __future__ import annotations

import pytest

from gpupipe.protocol.messages import Failed
from gpupipe.server import dispatch
from gpupipe.server.dispatch import FinalError


def test_a_server_closes_when_all_connected_clients_have_the_error() -> None:
    error = FinalError()
    assert error.message is None
    failed = Failed("EngineError", "it broke", "", "")
    error.announce(failed, {"a", "b"})
    assert error.message is failed
    assert not error.may_close({"a", "b"})
    error.acknowledge("a")
    assert not error.may_close({"a", "b"})
    assert error.may_close({"a"}), "b has left"
    error.acknowledge("b")
    error.acknowledge("nobody")
    assert error.may_close({"a", "b"})


def test_a_server_waits_for_clients_that_do_not_answer_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: now)
    error = FinalError()
    error.announce(Failed("EngineError", "it broke", "", ""), {"a"})
    now = 104.0
    assert not error.may_close({"a"})
    now = 106.0
    assert error.may_close({"a"})
