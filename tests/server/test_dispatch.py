"""When a server whose engine failed may close, and how many long answers a connection gets."""

import pytest

from gpupipe.protocol.messages import Failed
from gpupipe.server import dispatch
from gpupipe.server.dispatch import FinalError, RateLimits


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


def test_each_connection_has_a_limit_of_its_own() -> None:
    limits = RateLimits()
    assert [limits.allow(b"a", 0.0) for _ in range(21)] == [True] * 20 + [False]
    assert limits.allow(b"b", 0.0)
    assert limits.allow(b"a", 0.25)


def test_connections_that_are_forgotten_are_those_that_asked_least_recently() -> None:
    limits = RateLimits()
    for _ in range(20):
        limits.allow(b"first", 0.0)
    for number in range(9_999):
        limits.allow(number.to_bytes(4, "little"), 0.0)
    assert not limits.allow(b"first", 0.0), "10,000 are remembered"
    for number in range(9_999, 20_000):
        limits.allow(number.to_bytes(4, "little"), 0.0)
    assert limits.allow(b"first", 0.0)
