"""Cuts connections that send more than a client needs to.

ZeroMQ limits the size of a frame, but not the number of frames in a message. A message without end
would fill the memory, and the application would never receive it. So this asks the kernel how much
each connection has sent. A client's messages are small: a few hundred bytes per batch.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from gpupipe.server.rate_limits import TokenBucket

_log = logging.getLogger("gpupipe")
_HANDSHAKE_DONE = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Not FAILED_NO_DETAIL: the handshake fails so if the client is the first to notice that the socket
types do not match.
"""
_OTHER_PROTOCOL = (
    "gpupipe: a connection ended before ZeroMQ's handshake did. If it was Fuel's own "
    "ServerDataStream: that needs 'gpupipe serve --wire fuel', and gpupipe.ServerDataStream reads "
    "from this server"
)
_CLOSED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_RECEIVED_AT = 128
"""Offset of tcpi_bytes_received in Linux's struct tcp_info, in bytes."""


@dataclass
class _Sender:
    """A connection.

    Attributes:
        peer: Address of the other side.
        counted: Bytes that it had sent at the last check.
        budget: Bytes that it may still send.
    """

    peer: Any
    counted: int
    budget: TokenBucket


class FloodGuard:
    """Limits what the connections of a listening ROUTER socket send. Only for TCP on Linux.

    Args:
        listening: The socket.
        burst: Bytes that a connection may send at once.
        rate: Bytes per second that a connection may send.

    Attributes:
        num_cut: Number of connections that were cut.
    """

    def __init__(self, listening: Any, burst: float = 4e6, rate: float = 4e6) -> None:
        self._listening, self._burst, self._rate = listening, burst, rate
        self._events = listening.get_monitor_socket(zmq.EVENT_ACCEPTED | _HANDSHAKE_DONE | _CLOSED)
        self._senders: dict[int, _Sender] = {}
        self._in_handshake: set[int] = set()
        self._has_warned = False
        self.num_cut = 0

    def check_connections(self, now: float) -> None:
        """Check all connections, and cut those that sent too much.

        Args:
            now: Seconds, of a monotonic clock.
        """
        while self._events.poll(0):
            self._on_event(recv_monitor_message(self._events, zmq.NOBLOCK), now)
        for descriptor, sender in list(self._senders.items()):
            self._check_sender(descriptor, sender, now)

    def close(self) -> None:
        """Stop watching. Call it before the socket is closed."""
        self._listening.disable_monitor()
        self._events.close(0)

    def _on_event(self, event: Any, now: float) -> None:
        if event["event"] & _HANDSHAKE_DONE:  # the event does not say of which connection
            self._in_handshake.clear()
            return
        descriptor = int(event["value"])
        self._warn_of_other_protocol(descriptor, event["event"])
        self._senders.pop(descriptor, None)
        if (
            event["event"] == zmq.EVENT_ACCEPTED
            and (seen := _peer_and_bytes(descriptor)) is not None
        ):
            self._senders[descriptor] = _Sender(*seen, TokenBucket(self._burst, self._rate, now))

    def _warn_of_other_protocol(self, descriptor: int, event: int) -> None:
        """Log once that a connection ended before its handshake did.

        If the socket types do not match, the side that notices first ends the connection like this.
        """
        if event == zmq.EVENT_ACCEPTED:
            self._in_handshake.add(descriptor)
        elif descriptor in self._in_handshake:
            self._in_handshake.discard(descriptor)
            if not self._has_warned:
                self._has_warned = True
                _log.warning(_OTHER_PROTOCOL)

    def _check_sender(self, descriptor: int, sender: _Sender, now: float) -> None:
        seen = _peer_and_bytes(descriptor)
        # closed, or the descriptor number belongs to another file by now
        if seen is None or seen[0] != sender.peer:
            del self._senders[descriptor]
            return
        sent, sender.counted = seen[1] - sender.counted, seen[1]
        if not sender.budget.take(sent, now):
            del self._senders[descriptor]
            self.num_cut += 1  # first: the other side may look as soon as it is cut off
            _shut_down(descriptor)


@contextmanager
def _connection(descriptor: int) -> Iterator[socket.socket]:
    """Open a duplicate of a socket that belongs to ZeroMQ, from its descriptor number.

    Raises OSError if the descriptor is closed or is no socket.
    """
    own = os.dup(descriptor)
    try:
        connection = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
    with connection:
        yield connection


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


def _shut_down(descriptor: int) -> None:
    """Shut a connection down. ZeroMQ notices, and frees its part of an unfinished message."""
    with suppress(OSError), _connection(descriptor) as connection:
        # linger of 0 seconds resets the connection, so that the other side notices at once
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
