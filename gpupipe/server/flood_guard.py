"""Cuts connections that send more than a client needs to, or that open no session.

ZeroMQ limits the size of a frame, but not the number of frames in a message. A message without end
would fill the memory, and the application would never receive it. So FloodGuard asks the kernel how
much each connection has sent, and the server calls on_message() for each message. A client's
messages are small: one frame of a few hundred bytes per batch. Each connection takes a file
descriptor, even if it sends nothing. So FloodGuard limits how many connections without a session
there are, and for how long each may be silent.
"""

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
"""Maximum number of bytes that a connection may send before the server receives a message of it.
ZeroMQ takes 64 bytes of memory for a frame, and the shortest frame has two bytes.
"""
_BURST = _BYTES_PER_SECOND = 4e6
"""Bytes that a connection may send at once, and per second."""
_MAX_FRAMES = 16
"""Maximum number of frames of a message. A client sends one."""
_MAX_WAITING, _WAITING_SECONDS = 256, 10.0
"""Maximum number of connections without a session, and seconds that each of them may be silent."""
_FILES_PER_WAITING, _MAX_FILES = 8, 1 << 16
"""At most 1 / _FILES_PER_WAITING of all file descriptors are for connections without a session.
The process raises its own limit of descriptors to at most _MAX_FILES.
"""
_TRIM_SECONDS = 1.0
"""Seconds after the end of a connection until ZeroMQ has certainly freed its memory."""
_MAX_EVENTS = 1000
_HANDSHAKE_DONE = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""FAILED_NO_DETAIL is left out: that is the event if the client is the first to notice that the
socket types do not match.
"""
_CLOSED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_RECEIVED_AT = 128
"""Offset of tcpi_bytes_received in Linux's struct tcp_info, in bytes."""


@dataclass
class TokenBucket:
    """A limit of a rate: has `burst` tokens at first and at most, and gets `rate` tokens a second.

    `last_refill` is the time of the last refill in seconds, at first the time of the creation.
    """

    burst: float
    rate: float
    last_refill: float
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` tokens, or all if there are fewer. Return whether there were enough."""
        left = min(self.burst, self._left + (now - self.last_refill) * self.rate)
        self._left, self.last_refill = max(0.0, left - amount), now
        return left >= amount


@dataclass
class _Sender:
    """A TCP connection to the server, and what its peer has sent.

    Attributes:
        peer: Address of the peer.
        counted: Number of bytes that the peer had sent at the last check.
        budget: Bytes that the peer may still send.
        last_message: Time of the last message in seconds, at first the time of the connection.
        received: Upper bound on the bytes that the peer had sent when the server last received a
            message from it.
        route: Identity of the connection in the ROUTER socket, b"" before its first message.
        is_fresh: Whether the server received a message from the peer since the last check.
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
    """Cuts connections to a ROUTER socket that send too much, or that open no session.

    It works only for TCP on Linux.

    The parameter `now` of the methods is in seconds, of a monotonic clock.

    Args:
        listening: The ROUTER socket.
        has_session: Returns whether the connection of a route has a session.
        max_clients: Maximum number of sessions.

    Attributes:
        events: ZeroMQ's monitor socket, to poll: handle_events() reads it.
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
        self._early: set[int] = set()
        self._has_warned = self._is_early = False
        self._trim_at: float | None = None
        self.num_cut = 0

    def handle_events(self, now: float) -> None:
        """Handle new and closed connections.

        If too many connections have no session, the oldest of these are cut.
        """
        for _ in range(_MAX_EVENTS):
            if not self.events.poll(0):
                break
            self._on_event(recv_monitor_message(self.events, zmq.NOBLOCK), now)
        if len(self._senders) > self._max_waiting:
            for descriptor in self._waiting()[: -self._max_waiting]:
                self._cut(descriptor, now)

    def on_message(self, route: bytes, frames: list[Any], now: float) -> None:
        """Record a received message. Cut its connection if the message has too many frames."""
        descriptor = frames[0].get(zmq.SRCFD)
        self._in_handshake.discard(descriptor)  # who sends a message has shaken hands
        sender = self._senders.get(descriptor)
        if sender is None:
            self._early.add(descriptor)
            return
        sender.route, sender.last_message, sender.is_fresh = route, now, True
        if len(frames) > _MAX_FRAMES:
            self._cut(descriptor, now)

    def check_connections(self, now: float) -> None:
        """Cut connections that sent too much, or that have no session and were silent too long."""
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
        """Stop monitoring the socket. Call this before the socket is closed."""
        self._listening.disable_monitor()
        self.events.close(0)

    def _on_event(self, event: Any, now: float) -> None:
        if event["event"] & _HANDSHAKE_DONE:  # the event does not name its connection
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
        """Log a warning, once, if a connection ends before its ZeroMQ handshake is complete.

        Either side ends the connection like this if it notices that the socket types do not match.
        ZeroMQ's threads may report a handshake, or deliver a message, before they report the
        connection.
        """
        if event == zmq.EVENT_ACCEPTED and descriptor in self._early:
            self._early.discard(descriptor)
        elif event == zmq.EVENT_ACCEPTED and self._is_early:
            self._is_early = False
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
        """Cut the connections with the most unread bytes until the total is below its limit."""
        unread = {descriptor: sender.unread for descriptor, sender in self._senders.items()}
        total = sum(unread.values())
        for descriptor in sorted(unread, key=unread.__getitem__, reverse=True):
            if total <= self._max_unread:
                break
            total -= unread[descriptor]
            self._cut(descriptor, now)

    def _waiting(self) -> list[int]:
        """Return the descriptors of connections without a session, the oldest connection first.

        The time since the last message does not order them: a new client has sent nothing yet.
        """
        return [d for d, sender in self._senders.items() if not self._has_session(sender.route)]

    def _cut(self, descriptor: int, now: float) -> None:
        peer = self._senders[descriptor].peer
        self._forget(descriptor, now)
        self._trim_at = now + _TRIM_SECONDS
        self._in_handshake.discard(descriptor)
        self.num_cut += 1  # before _shut_down: the peer may read the stats once it is cut off
        _shut_down(descriptor, peer)

    def _forget(self, descriptor: int, now: float) -> None:
        """Forget a connection that ends. Schedule malloc_trim if it left an incomplete message."""
        sender = self._senders.pop(descriptor, None)
        if sender is not None and sender.unread:
            self._trim_at = now + _TRIM_SECONDS


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit, at most 65,536. Return the new limit.

    ZeroMQ accepts connections faster than FloodGuard cuts them, and the usual limit is 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


@contextmanager
def _connection(descriptor: int) -> Iterator[socket.socket]:
    """Yield a Python socket for the descriptor of one of ZeroMQ's sockets. Does not close it.

    The descriptor is not duplicated, since the process may have none left. Raises OSError if the
    descriptor is closed or is no socket.
    """
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()


def _peer_and_bytes(descriptor: int) -> tuple[Any, int] | None:
    """Return the peer address of a TCP connection and the bytes received from it.

    Returns None if the descriptor is no TCP connection, or if the kernel does not count the bytes.
    """
    try:
        with _connection(descriptor) as connection:
            facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
            return connection.getpeername(), struct.unpack_from("=Q", facts, _RECEIVED_AT)[0]
    except (OSError, AttributeError, struct.error):
        return None


def _shut_down(descriptor: int, peer: Any) -> None:
    """Reset a connection if its peer is still `peer`. ZeroMQ then frees the incomplete message."""
    with suppress(OSError), _connection(descriptor) as connection:
        if connection.getpeername() != peer:
            return
        # linger of 0 seconds resets the connection, so that the other side notices at once
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
