"""The connections of a server: the socket that listens, which clients may connect, the connection
of each client with its shared memory, and the queue of messages to send.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import zmq

from gpupipe.engines.base import Batch
from gpupipe.protocol import batch_bytes, codec, messages, peers, sockets
from gpupipe.protocol.batch_bytes import compress, fields_of, fill, pieces
from gpupipe.protocol.messages import Key
from gpupipe.protocol.shared_memory import Slots
from gpupipe.runtime.process import close_sockets_in_forks, keep_sockets_in_forks
from gpupipe.sampling.sampler import Plan
from gpupipe.server.clients_and_passes import SessionStarted
from gpupipe.server.lease_state import LeaseState
from gpupipe.server.options import ServerOptions

_log = logging.getLogger("gpupipe")
Frames = list[Any]
_SENT = ("batches", "bytes", "batches_through_shared_memory")
_MAX_QUEUED_ANSWERS = 100_000
_MAX_REFUSED = 100
"""Maximum number of refused keys to log: a peer can connect with any number of keys."""
_SOCKET_BUFFER, _LINGER_MS = 4 << 20, 200
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10000
"""Milliseconds between two of ZeroMQ's own heartbeats, and milliseconds without a heartbeat after
which ZeroMQ closes a connection.
"""
_EXTRA_SLOTS = 2
"""Slots beyond hwm: a consumer's variable holds one batch until the next one is assigned to it, and
one slot is on its way back to the server.
"""


@dataclass
class ClientConnection:
    """The current connection of a client.

    Attributes:
        route: Identity of the connection in ZeroMQ's ROUTER socket.
        slots: Shared memory for batches, or None to send them over the socket.
        compress: Codec of batches that go over the socket; "" for none.
        is_closed: The connection is closed; nothing more is sent over it.
    """

    route: bytes
    slots: Slots | None
    compress: str
    is_closed: bool = False


@dataclass
class Connections:
    """All connections of a server. To call a method, the caller must hold the server's lock, except
    for `send_batch`, which takes the lock itself.

    Attributes:
        state: Sessions and leases, and an outbox, whose messages flush() queues.
        compress: Codec that the server is configured with, "none" for no compression.
        wake: Function that wakes the thread that owns the socket.
        lock: The server's lock.
        by_token: Connections by client token.
        token_of_route: Client tokens by route.
        send_queue: (route, frames) to send, in order.
        sent: Counters since the start: batches, their bytes, and batches through shared memory.
        host_id: Names this machine, process namespace and user; see peers.host_id.
    """

    state: LeaseState
    compress: str
    wake: Callable[[], None]
    lock: Any
    by_token: dict[str, ClientConnection] = field(default_factory=dict)
    token_of_route: dict[bytes, str] = field(default_factory=dict)
    send_queue: deque[tuple[bytes, Frames]] = field(default_factory=deque)
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SENT, 0))
    host_id: str = field(default_factory=peers.host_id)

    def open(self, route: bytes, request: messages.OpenSession, hwm: int) -> None:
        """Register a client's connection, and close the client's earlier one.

        `hwm`: number of batches that the client may hold.
        """
        self.close(request.token)
        shares = (
            request.wants_shared_memory and self._is_here(request) and not self.has_ended(request)
        )
        compress = self.compress if self.compress in request.codecs else ""
        self.by_token[request.token] = ClientConnection(
            route, Slots(hwm + _EXTRA_SLOTS) if shares else None, compress
        )
        self.token_of_route[route] = request.token

    def close(self, token: str) -> None:
        """Close a client's connection, if it has one, and free the connection's slots."""
        old = self.by_token.pop(token, None)
        if old is not None:
            old.is_closed = True
            self.token_of_route.pop(old.route, None)
            if old.slots is not None:
                old.slots.close()

    def release_slots(self, token: str, numbers: list[int]) -> None:
        """Let a client's slots of shared memory take batches again.

        The caller must first make sure that no tensor uses them.
        """
        slots = self.by_token[token].slots
        if slots is not None:
            for number in numbers:
                slots.release(number)

    def has_ended(self, process: messages.OpenSession | SessionStarted) -> bool:
        """Return True if the client's process ran on this machine and has ended."""
        return self._is_here(process) and peers.start_time(process.pid) != process.process_started

    def _is_here(self, process: messages.OpenSession | SessionStarted) -> bool:
        """Return whether the client's process was started on this machine."""
        return self.host_id != "" and process.host_id == self.host_id

    def answer(self, route: bytes, message: messages.ToClient) -> None:
        """Queue a message for the connection `route`."""
        self.send_queue.append((route, [codec.encode(message)]))

    def send(self, token: str, message: messages.ToClient) -> None:
        """Queue a message to a client. Does nothing if the client has no connection."""
        if token in self.by_token:
            self.answer(self.by_token[token].route, message)

    def flush(self) -> None:
        """Queue the messages of the outbox of `state`, close connections without a session, and
        wake the thread that sends.
        """
        for token, message in self.state.outbox:
            self.send(token, message)
        self.state.outbox.clear()
        for token in [t for t in self.by_token if t not in self.state.clients]:
            self.close(token)
        self.wake()

    def send_batch(self, token: str, key: Key, plan: Plan, batch: Batch) -> None:
        """Send a batch to the client that leases it.

        The batch goes through a slot of shared memory, or in pieces over the socket if no slot is
        free.
        """
        fields = fields_of(batch)
        size = batch_bytes.offsets(fields)[1]
        with self.lock:
            connection = self.by_token.get(token)
            taken = (
                connection.slots.take(size)
                if connection is not None and connection.slots is not None
                else None
            )
        if connection is None:
            return
        head = messages.BatchHeader(
            key, plan.epoch, plan.end, plan.last, fields, size, taken and taken[0]
        )
        if taken is not None:
            fill(taken[1], batch)
            parts: list[Frames] = []
        else:
            parts = [_part(key, start, data, connection.compress) for start, data in pieces(batch)]
        with self.lock:
            self.flush()  # the client must know of its pass before the batch arrives
            client = self.state.clients.get(token)
            if client is None or key not in client.leases:  # requeued while it was copied
                if taken is not None and not connection.is_closed:
                    self.release_slots(token, [taken[0].number])
                return
            if not connection.is_closed:
                self.send_queue.extend(
                    (connection.route, frames) for frames in [[codec.encode(head)], *parts]
                )
            self.sent["batches"] += 1
            self.sent["bytes"] += size
            self.sent["batches_through_shared_memory"] += taken is not None
        self.wake()


def _part(key: Key, start: int, data: memoryview, codec_name: str) -> Frames:
    packed = compress(codec_name, data) if codec_name else None
    part = messages.BatchPart(key, start, len(data), "" if packed is None else codec_name)
    return [codec.encode(part), data if packed is None else packed]


# --- the socket


def listen(options: ServerOptions, exits: ExitStack) -> tuple[Any, str]:
    """Listen for clients. Return (ROUTER socket, its address with the port).

    `exits` closes the socket. Raises ServerError if the address or the keys cannot be used.
    """
    context = zmq.Context(io_threads=2)
    exits.callback(context.term)
    socket = context.socket(zmq.ROUTER)
    exits.callback(socket.close, _LINGER_MS)
    for option, value in (
        (zmq.LINGER, _LINGER_MS),
        (zmq.SNDHWM, _MAX_QUEUED_ANSWERS),
        (zmq.RCVHWM, 1000),
        (zmq.MAXMSGSIZE, codec.HEAD_LIMIT),
        (zmq.ROUTER_MANDATORY, 1),
        (zmq.SNDBUF, _SOCKET_BUFFER),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
        (zmq.IPV6, int("[" in options.address)),
        (zmq.BACKLOG, 1024),
        (zmq.HANDSHAKE_IVL, 10000),
    ):
        socket.setsockopt(option, value)
    if options.keys is not None:
        _check_keys(context, options, exits)
        peers.secure_server(socket, options.keys)
    address = sockets.bind(socket, options.address)
    is_file = address.startswith("ipc://")
    port_or_file = address.removeprefix("ipc://") if is_file else int(address.rpartition(":")[2])
    close_sockets_in_forks(port_or_file)
    exits.callback(keep_sockets_in_forks, port_or_file)
    return socket, address


def _check_keys(context: Any, options: ServerOptions, exits: ExitStack) -> None:
    """Start the thread that accepts a new connection only if its key is an allowed one."""
    from zmq.auth.thread import ThreadAuthenticator

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    exits.callback(authenticator.stop)
    authenticator.configure_curve_callback(
        domain="gpupipe", credentials_provider=AllowedKeys(str(options.allowed))
    )


class AllowedKeys:
    """Decides which clients may connect. Logs each refused key, but only once.

    Args:
        folder: The folder of the public keys of the clients that may connect.
    """

    def __init__(self, folder: str) -> None:
        import zmq.auth

        self._folder, self._keys = folder, zmq.auth.load_certificates(folder)
        self._refused: set[bytes] = set()

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a public key, in Z85, is allowed. ZeroMQ's authenticator calls it."""
        if key in self._keys:
            return True
        if key not in self._refused and len(self._refused) < _MAX_REFUSED:
            self._refused.add(key)
            _log.warning(
                "gpupipe: refused a client whose public key, %s, is not in %s: put its NAME.key "
                "there and start the server again, if it may connect",
                key.decode(),
                self._folder,
            )
        return False
