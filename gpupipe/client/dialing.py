"""Opens a client's socket, and builds its OpenSession messages."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from socket import gethostname
from typing import Any

import zmq

from gpupipe.errors import ServerError
from gpupipe.protocol import codec, compression, keys, messages, processes
from gpupipe.protocol.messages import Key

LINGER_MS = 500
_SOCKET_BUFFER = 4 << 20


@dataclass(frozen=True)
class ConnectionOptions:
    """How to connect to a server.

    Attributes:
        address: tcp://HOST:PORT or ipc://FILE.
        rank: Rank of this client, from 0.
        world_size: Number of ranks.
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
    world_size: int = 1
    hwm: int = 10
    transport: str = "auto"
    key: Path | None = None
    server_key: Path | None = None
    patience: float = 60.0
    gpu: int | None = None


def session_request(
    options: ConnectionOptions, token: str
) -> Callable[[bool, list[Key], list[Key], str], messages.OpenSession]:
    """Return a function that builds the next OpenSession of the client `token`.

    Its arguments are the fields `wants_shared_memory`, `held`, `consumed` and `history`.
    """
    host_id, pid, numbers = processes.host_id(), os.getpid(), count(1)
    name = f"{gethostname()}:{pid}"[:200]

    def request(
        wants_shared_memory: bool, held: list[Key], consumed: list[Key], history: str
    ) -> messages.OpenSession:
        return messages.OpenSession(
            messages.VERSION,
            token,
            next(numbers),
            name,
            options.rank,
            options.world_size,
            options.hwm,
            host_id,
            pid,
            processes.start_time(pid),
            wants_shared_memory,
            list(compression.installed()),
            held,
            consumed,
            history,
        )

    return request


def dial(context: Any, options: ConnectionOptions) -> Any:
    """Return a socket that connects and reconnects to a server. Raises ServerError."""
    socket = context.socket(zmq.DEALER)
    for option, value in (
        (zmq.LINGER, LINGER_MS),
        (zmq.RCVHWM, 0),
        (zmq.SNDHWM, 1000),
        (zmq.IMMEDIATE, 1),
        (zmq.MAXMSGSIZE, codec.MESSAGE_LIMIT),
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
