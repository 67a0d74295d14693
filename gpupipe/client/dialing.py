"""Opens a client's socket, builds its Hello, and turns the server's errors into exceptions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from socket import gethostname
from typing import Any

import zmq

from gpupipe import errors
from gpupipe.errors import GpupipeError, SampleError, ServerError
from gpupipe.protocol import compression, keys, messages
from gpupipe.protocol.messages import Key
from gpupipe.protocol.shared_memory import place, started

LINGER_MS = 500
_SOCKET_BUFFER = 4 << 20


@dataclass(frozen=True)
class ConnectionOptions:
    """How to connect to a server.

    Attributes:
        address: tcp://HOST:PORT or ipc://FILE.
        rank: Rank of this client, from 0.
        world: Number of ranks.
        hwm: Number of batches that this client may hold, 1 to 1000.
        transport: "auto" or "shm" for shared memory, if this machine and the server's allow it;
            "tcp" for the socket.
        key: File of this client's secret key, for a server with keys.
        server_key: File of the server's public key.
        patience: Seconds without a message from the server until a call raises ServerError.
        gpu: Index of the GPU that batches are copied to, or None. Memory that receives them is
            page-locked for it.

    """

    address: str
    rank: int = 0
    world: int = 1
    hwm: int = 10
    transport: str = "auto"
    key: Path | None = None
    server_key: Path | None = None
    patience: float = 60.0
    gpu: int | None = None


def greeting(
    options: ConnectionOptions, token: str
) -> Callable[[bool, list[Key], list[Key], str], messages.Hello]:
    """Return a function that builds the next Hello of the client `token`.

    Its arguments are the fields `shared`, `holding`, `done` and `history` of messages.Hello.
    """
    here, pid, numbers = place(), os.getpid(), count(1)
    name = f"{gethostname()}:{pid}"[:200]

    def hello(shared: bool, holding: list[Key], done: list[Key], history: str) -> messages.Hello:
        return messages.Hello(
            messages.VERSION,
            token,
            next(numbers),
            name,
            options.rank,
            options.world,
            options.hwm,
            here,
            pid,
            started(pid),
            shared,
            list(compression.installed()),
            holding,
            done,
            history,
        )

    return hello


def dial(context: Any, options: ConnectionOptions) -> Any:
    """Return a socket that connects and reconnects to a server. Raises ServerError."""
    socket = context.socket(zmq.DEALER)
    for option, value in (
        (zmq.LINGER, LINGER_MS),
        (zmq.RCVHWM, 0),
        (zmq.SNDHWM, 1000),
        (zmq.IMMEDIATE, 1),
        (zmq.MAXMSGSIZE, messages.MESSAGE_LIMIT),
        (zmq.RCVBUF, _SOCKET_BUFFER),
        (zmq.RECONNECT_IVL, 100),
        (zmq.RECONNECT_IVL_MAX, 2000),
        (zmq.HEARTBEAT_IVL, 2000),
        (zmq.HEARTBEAT_TIMEOUT, 10000),
        (zmq.IPV6, int("[" in options.address)),
    ):
        socket.setsockopt(option, value)
    try:
        if options.key is not None and options.server_key is not None:
            keys.secure_client(socket, options.key, options.server_key)
        socket.connect(options.address)
    except BaseException as e:
        socket.close(0)
        context.term()
        if isinstance(e, zmq.ZMQError):
            raise ServerError(
                f"'{options.address}' is no address of a server: {e}; write "
                "tcp://HOST:PORT, for instance tcp://127.0.0.1:5557"
            ) from None
        raise
    return socket


def error_of(failed: messages.Failed) -> GpupipeError:
    """Return the server's error as the exception that the same pipeline would raise here.

    Classes other than those of gpupipe.errors, and ConfigError, become ServerError.
    """
    if failed.kind == "SampleError":
        return SampleError(failed.path, failed.reason)
    kind = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, GpupipeError) and kind is not errors.ConfigError:
        return kind(failed.text)
    return ServerError(failed.text)
