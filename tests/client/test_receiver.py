"""Whose fault an error is that a client meets while it receives."""

from __future__ import annotations

from gpupipe.client.receiver import wrap_error
from gpupipe.errors import EngineError, ServerError


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
