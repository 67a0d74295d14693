"""Cuts connections that send more than a client needs to, or that open no session.

ZeroMQ limits the size of a frame, but not the number of frames in a message. A message without end
would fill the memory, and the application would never receive it. So this asks the kernel how much
each connection has sent, and the server says which connections it has received messages from. A
client's messages are small: one frame of a few hundred bytes per batch. Each connection takes a
file descriptor, also one that says nothing. So few may wait without a session, and not for long.
"""

from __future__ import annotations

import logging
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from gpupipe.protocol.codec import HEAD_LIMIT
from gpupipe.runtime.memory import malloc_trim

_log = logging.getLogger("gpupipe")
_MAX_UNREAD = 4 * HEAD_LIMIT
"""Bytes of a connection that make no complete message yet, or one that was not received yet. ZeroMQ
takes 64 bytes of memory for a frame, and the shortest frame has two bytes.
"""
_BURST = _BYTES_PER_SECOND = 4e6
"""Bytes that a connection may send at once, and per second."""
_MAX_FRAMES = 16
"""Frames of a complete message. A client sends one."""
_MAX_WAITING, _WAITING_SECONDS = 256, 10.0
"""Most connections without a session, and the seconds that one may be silent, as in a handshake."""
_FILES_PER_WAITING, _MAX_FILES = 8, 1 << 16
"""One in this many of the files that the process may open is for connections without a session."""
_TRIM_SECONDS = 1.0
"""Seconds after the end of a connection until ZeroMQ has certainly freed its memory."""
_MAX_EVENTS = 1000
_HANDSHAKE_DONE = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Not FAILED_NO_DETAIL: the handshake fails so if the client is the first to notice that the socket
types do not match.
"""
_CLOSED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_RECEIVED_AT = 128
"""Offset of tcpi_bytes_received in Linux's struct tcp_info, in bytes."""


@dataclass
class TokenBucket:
    """A token bucket with a capacity, which is its initial content, and a refill per second.

    `last_refill` is the time of the last refill, at first of the creation, in seconds.
    """

    burst: float
    rate: float
    last_refill: float
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, amount: float, now: float) -> bool:
        """Take `amount`, or all that is left if that is less. Return whether there was enough."""
        left = min(self.burst, self._left + (now - self.last_refill) * self.rate)
        self._left, self.last_refill = max(0.0, left - amount), now
        return left >= amount


@dataclass
class _Sender:
    """A connection.

    Attributes:
        peer: Address of the other side.
        counted: Bytes that it had sent at the last check.
        budget: Bytes that it may still send.
        last_message: Time of its last message, at first of its beginning. Seconds.
        received: Bytes that it had sent when its last message was received, at most.
        route: Its identity in the ROUTER socket, b"" before its first message.
        is_fresh: A message of it was received since the last check.
    """

    peer: Any
    counted: int
    budget: TokenBucket
    last_message: float
    received: int = 0
    route: bytes = b""
    is_fresh: bool = False

    @property
    def unread(self) -> int:
        return self.counted - self.received


class FloodGuard:
    """Limits the connections of a listening ROUTER socket. Only for TCP on Linux.

    Every `now` is in seconds, of a monotonic clock.

    Args:
        listening: The socket.
        has_session: Returns whether the connection of a route has a session.
        max_clients: Maximum number of sessions.

    Attributes:
        events: The socket to poll: handle_events() reads it.
        num_cut: Number of connections that were cut.
    """

    def __init__(
        self, listening: Any, has_session: Callable[[bytes], bool], max_clients: int
    ) -> None:
        self._listening, self._has_session = listening, has_session
        self._max_unread = HEAD_LIMIT * max(16, max_clients // 4)
        self._max_waiting = min(_MAX_WAITING, raise_file_limit() // _FILES_PER_WAITING)
        self.events = listening.get_monitor_socket(zmq.EVENT_ACCEPTED | _HANDSHAKE_DONE | _CLOSED)
        self._senders: dict[int, _Sender] = {}
        self._in_handshake: set[int] = set()
        self._has_warned = self._is_early = False
        self._trim_at: float | None = None
        self.num_cut = 0

    def handle_events(self, now: float) -> None:
        """Handle new and closed connections, and cut the oldest if too many have no session."""
        for _ in range(_MAX_EVENTS):
            if not self.events.poll(0):
                break
            self._on_event(recv_monitor_message(self.events, zmq.NOBLOCK), now)
        if len(self._senders) > self._max_waiting:
            for descriptor in self._waiting()[: -self._max_waiting]:
                self._cut(descriptor, now)

    def on_message(self, route: bytes, frames: list[Any], now: float) -> None:
        """Note that a message was received, and cut the connection if it has too many frames."""
        descriptor = frames[0].get(zmq.SRCFD)
        sender = self._senders.get(descriptor)
        if sender is None:
            return
        sender.route, sender.last_message, sender.is_fresh = route, now, True
        if len(frames) > _MAX_FRAMES:
            self._cut(descriptor, now)

    def check_connections(self, now: float) -> None:
        """Check all connections, and cut those that sent too much, or that wait for too long."""
        self.handle_events(now)
        for descriptor, sender in list(self._senders.items()):
            self._check_sender(descriptor, sender, now)
        for descriptor in self._waiting():
            if now - self._senders[descriptor].last_message > _WAITING_SECONDS:
                self._cut(descriptor, now)
        self._limit_unread(now)
        if self._trim_at is not None and now > self._trim_at:
            self._trim_at = None
            malloc_trim()

    def close(self) -> None:
        """Stop watching. Call it before the socket is closed."""
        self._listening.disable_monitor()
        self.events.close(0)

    def _on_event(self, event: Any, now: float) -> None:
        if event["event"] & _HANDSHAKE_DONE:  # the event does not say of which connection
            self._is_early = not self._in_handshake
            self._in_handshake.clear()
            return
        descriptor = int(event["value"])
        self._warn_of_other_protocol(descriptor, event["event"])
        self._forget(descriptor, now)
        seen = _peer_and_bytes(descriptor) if event["event"] == zmq.EVENT_ACCEPTED else None
        if seen is not None:
            budget = TokenBucket(_BURST, _BYTES_PER_SECOND, now)
            self._senders[descriptor] = _Sender(*seen, budget, now)

    def _warn_of_other_protocol(self, descriptor: int, event: int) -> None:
        """Log once that a connection ended before its handshake did.

        If the socket types do not match, the side that notices first ends the connection like this.
        """
        if event == zmq.EVENT_ACCEPTED and self._is_early:
            self._is_early = False  # two threads of ZeroMQ: its handshake was reported first
        elif event == zmq.EVENT_ACCEPTED:
            self._in_handshake.add(descriptor)
        elif descriptor in self._in_handshake:
            self._in_handshake.discard(descriptor)
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "gpupipe: a connection ended before ZeroMQ's handshake did. If it was Fuel's "
                    "own ServerDataStream: that needs 'gpupipe serve --wire fuel', and "
                    "gpupipe.ServerDataStream reads from this server"
                )

    def _check_sender(self, descriptor: int, sender: _Sender, now: float) -> None:
        seen = _peer_and_bytes(descriptor)
        # closed, or the descriptor number belongs to another file by now
        if seen is None or seen[0] != sender.peer:
            self._forget(descriptor, now)
            return
        sent, sender.counted = seen[1] - sender.counted, seen[1]
        if sender.is_fresh:
            sender.received, sender.is_fresh = sender.counted, False
        if not sender.budget.take(sent, now) or sender.unread > _MAX_UNREAD:
            self._cut(descriptor, now)

    def _limit_unread(self, now: float) -> None:
        """Cut the connections with the most unread bytes until all together are few enough."""
        unread = {descriptor: sender.unread for descriptor, sender in self._senders.items()}
        total = sum(unread.values())
        for descriptor in sorted(unread, key=unread.__getitem__, reverse=True):
            if total <= self._max_unread:
                break
            total -= unread[descriptor]
            self._cut(descriptor, now)

    def _waiting(self) -> list[int]:
        """Return the descriptors of connections without a session, the oldest first.

        Not those that were silent for longest: a new client has said nothing yet.
        """
        return [d for d, sender in self._senders.items() if not self._has_session(sender.route)]

    def _cut(self, descriptor: int, now: float) -> None:
        peer = self._senders[descriptor].peer
        self._forget(descriptor, now)
        self._trim_at = now + _TRIM_SECONDS
        self._in_handshake.discard(descriptor)
        self.num_cut += 1  # first: the other side may look as soon as it is cut off
        _shut_down(descriptor, peer)

    def _forget(self, descriptor: int, now: float) -> None:
        """Forget a connection that ends, and return the memory of what it left unfinished."""
        sender = self._senders.pop(descriptor, None)
        if sender is not None and sender.unread:
            self._trim_at = now + _TRIM_SECONDS


def raise_file_limit() -> int:
    """Let the process open as many files as it may, up to 65,536, and return how many.

    ZeroMQ accepts connections faster than they can be cut, and the usual limit is 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


@contextmanager
def _connection(descriptor: int) -> Iterator[socket.socket]:
    """Use a socket that belongs to ZeroMQ, from its descriptor number.

    Without a duplicate: the process may have no descriptor left. Raises OSError if the descriptor
    is closed or is no socket.
    """
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()


def _peer_and_bytes(descriptor: int) -> tuple[Any, int] | None:
    """Return the peer address of a TCP connection and the bytes received from it.

    None if the descriptor is no TCP connection, or if the system does not count the bytes.
    """
    try:
        with _connection(descriptor) as connection:
            facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
            return connection.getpeername(), struct.unpack_from("=Q", facts, _RECEIVED_AT)[0]
    except (OSError, AttributeError, struct.error):
        return None


def _shut_down(descriptor: int, peer: Any) -> None:
    """Shut down the connection with a peer. ZeroMQ frees its part of an unfinished message."""
    with suppress(OSError), _connection(descriptor) as connection:
        if connection.getpeername() != peer:
            return
        # linger of 0 seconds resets the connection, so that the other side notices at once
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
