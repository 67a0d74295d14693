"""Servers in threads of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gpupipe
from gpupipe.server.options import ServerOptions
from gpupipe.server.service import Server


@contextmanager
def serving(
    config: dict[str, Any], changes: dict[str, Any] | None = None, **options: Any
) -> Iterator[Server]:
    """A server in a thread of this process, at any free port."""
    with Server(
        gpupipe.load(config, **(changes or {})),
        ServerOptions(**{"address": "tcp://127.0.0.1:0"} | options),
    ) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()
