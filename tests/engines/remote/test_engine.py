"""What the remote engine does before it has a batch."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpupipe.config import LoaderConfig
from gpupipe.engines.remote import engine
from gpupipe.engines.remote.engine import RemoteEngine
from gpupipe.errors import ConfigError
from gpupipe.sampling.selection import ALL_ONCE


def test_a_server_without_samples_is_refused_and_its_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []
    server = SimpleNamespace(
        dataset=SimpleNamespace(count=0, selection=ALL_ONCE),
        answer=SimpleNamespace(rank=0, world_size=1, epoch=0, position=0),
        connection=SimpleNamespace(close=lambda: closed.append("connection")),
    )
    loader = LoaderConfig()
    connected: tuple[Any, Any] = ([server], SimpleNamespace(loader=loader))

    def connect_servers(*arguments: Any) -> tuple[Any, Any]:
        arguments[-1].callback(server.connection.close)
        return connected

    monkeypatch.setattr(engine, "connect_servers", connect_servers)
    with pytest.raises(ConfigError, match="no samples"):
        RemoteEngine.connect(loader, 1.0, None)
    assert closed == ["connection"]
