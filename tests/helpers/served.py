"""Servers in threads of the test's own process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

import gpupipe
from gpupipe.server.fuel import FuelServer
from gpupipe.server.options import ServerOptions
from gpupipe.server.service import Server

Batches = list[dict[str, torch.Tensor]]
AnyServer = TypeVar("AnyServer", Server, FuelServer)


@contextmanager
def serving(
    config: dict[str, Any], changes: dict[str, Any] | None = None, **options: Any
) -> Iterator[Server]:
    """A server in a thread of this process, at any free port."""
    chosen = ServerOptions(**{"address": "tcp://127.0.0.1:0"} | options)
    with running(Server(gpupipe.load(config, **(changes or {})), chosen)) as server:
        yield server


@contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """A server that runs in a thread of this process."""
    with server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def ids_of(batches: Batches) -> list[list[int]]:
    """The ids of each batch."""
    return [b["id"].tolist() for b in batches]


def same_batches(found: Batches, expected: Batches) -> bool:
    """Whether two epochs have the same ids and images."""
    return ids_of(found) == ids_of(expected) and all(
        torch.equal(a["image"], b["image"]) for a, b in zip(found, expected, strict=True)
    )
