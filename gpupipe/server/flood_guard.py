"""Cuts off connections that send more than a client has to say.

ZeroMQ limits how long a frame is, but not how many frames a message has: a message without an end
would fill the memory, and never be seen by who receives. So the kernel is asked how much each
connection has sent. A client's messages are small: a few hundred bytes for every batch.
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

from gpupipe.server.limits import Allowance

_log = logging.getLogger("gpupipe")
_SHAKEN = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Not FAILED_NO_DETAIL: so it ends if the client is the first to see that the sockets do not fit.
"""
_OTHER_KIND = (
    "gpupipe: a connection ended before ZeroMQ's handshake did. If it was Fuel's own "
    "ServerDataStream: that needs 'gpupipe serve --wire fuel', and gpupipe.ServerDataStream reads "
    "from this server"
)
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_RECEIVED_AT = 128
"""Where Linux has tcpi_bytes_received in struct tcp_info."""


@dataclass
class _Sender:
    """A connection. peer: its address; counted: bytes that it had sent when it was looked at
    last.
    """

    peer: Any
    counted: int
    may_send: Allowance


class Guard:
    """For the connections of a listening ROUTER.

    A connection may send `burst` bytes at once and `rate` a second. Only TCP on Linux is looked at.
    """

    def __init__(self, listening: Any, burst: float = 4e6, rate: float = 4e6) -> None:
        self._listening, self._burst, self._rate = listening, burst, rate
        self._events = listening.get_monitor_socket(zmq.EVENT_ACCEPTED | _SHAKEN | _ENDED)
        self._senders: dict[int, _Sender] = {}
        self._shaking: set[int] = set()
        self._told = False
        self.cut = 0

    def look(self, now: float) -> None:
        """Look at all connections, and cut those that sent too much.

        now: seconds, of a clock that only goes forward.
        """
        while self._events.poll(0):
            self._on_event(recv_monitor_message(self._events, zmq.NOBLOCK), now)
        for descriptor, sender in list(self._senders.items()):
            self._look_at(descriptor, sender, now)

    def close(self) -> None:
        """Before the socket is closed."""
        self._listening.disable_monitor()
        self._events.close(0)

    def _on_event(self, event: Any, now: float) -> None:
        if event["event"] & _SHAKEN:  # of some connection: the event does not say which
            self._shaking.clear()
            return
        descriptor = int(event["value"])
        self._look_for_other_kinds(descriptor, event["event"])
        self._senders.pop(descriptor, None)
        if event["event"] == zmq.EVENT_ACCEPTED and (seen := _seen(descriptor)) is not None:
            self._senders[descriptor] = _Sender(*seen, Allowance(self._burst, self._rate, now))

    def _look_for_other_kinds(self, descriptor: int, event: int) -> None:
        """Log once that a connection ended before its handshake did.

        Either side ends it so if the types of their sockets do not fit, whichever sees it first.
        """
        if event == zmq.EVENT_ACCEPTED:
            self._shaking.add(descriptor)
        elif descriptor in self._shaking:
            self._shaking.discard(descriptor)
            if not self._told:
                self._told = True
                _log.warning(_OTHER_KIND)

    def _look_at(self, descriptor: int, sender: _Sender, now: float) -> None:
        seen = _seen(descriptor)
        if (
            seen is None or seen[0] != sender.peer
        ):  # closed, and the number is another file's by now
            del self._senders[descriptor]
            return
        sent, sender.counted = seen[1] - sender.counted, seen[1]
        if not sender.may_send.take(sent, now):
            del self._senders[descriptor]
            _shut_down(descriptor)
            self.cut += 1


@contextmanager
def _connection(descriptor: int) -> Iterator[socket.socket]:
    """The socket behind a descriptor that is ZeroMQ's, and stays so.

    Raises OSError where it is none, or none any more.
    """
    own = os.dup(descriptor)
    try:
        connection = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
    with connection:
        yield connection


def _seen(descriptor: int) -> tuple[Any, int] | None:
    """The address of the other side of a TCP connection, and the bytes that came from it; None
    where it is none, or the system does not tell.
    """
    try:
        with _connection(descriptor) as connection:
            facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
            return connection.getpeername(), struct.unpack_from("=Q", facts, _RECEIVED_AT)[0]
    except (OSError, AttributeError, struct.error):
        return None


def _shut_down(descriptor: int) -> None:
    """ZeroMQ sees that the connection is gone, and gives back what it had of a message."""
    with suppress(OSError), _connection(descriptor) as connection:
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )  # so that the other side is told at once
        connection.shutdown(socket.SHUT_RDWR)
