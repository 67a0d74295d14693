"""Binds and connects the sockets of server and clients, wakes the thread that polls a socket, and
finds out which program listens at the address of a server that does not answer.

ZeroMQ's socket monitor cannot identify the listener: it reports PUSH and PUB alike, and a REP
socket as compatible. It does not show the bytes that a peer of another protocol sends. So
`describe_listener` connects without ZeroMQ, exchanges the greeting of ZMTP 3.0
(https://rfc.zeromq.org/spec/23) and reads the peer's READY command, which names its socket type.
"""

import os
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zmq

from gpupipe.errors import ServerError
from gpupipe.protocol import codec, peers
from gpupipe.runtime.systems import open_nonblocking_pipe

LINGER_MS = 500
_SOCKET_BUFFER = 4 << 20
_TIMEOUT_SECONDS = 1.0
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_MECHANISM = slice(12, 32)
_GREETING = (
    (_SIGNATURE, 10),
    (b"\x03", 64),
    (b"\0" + b"NULL".ljust(20, b"\0") + bytes(32), 1 << 16),
)
"""(bytes to send, total number of bytes to receive before the next item is sent). The bytes that
name the mechanism NULL come last: a peer with another mechanism disconnects upon these bytes.
"""
_SOCKET_TYPE = re.compile(rb"\x0bSocket-Type\0\0\0.([A-Z]+)", re.DOTALL)
_OURS = "ROUTER"
_FUELS = "PUSH"


def bind(to: Any, address: str) -> str:
    """Bind a ZeroMQ socket, and return its address with the actual port.

    Raises ServerError if the socket cannot be bound to `address`.
    """
    try:
        to.bind(address)
    except zmq.ZMQError as e:
        raise ServerError(
            f"{address} cannot be listened on: {e}; another server may be there: take another "
            "--port"
        ) from None
    return str(to.getsockopt_string(zmq.LAST_ENDPOINT))


def connect(to: Any, address: str, key: Path | None, server_key: Path | None) -> None:
    """Connect a ZeroMQ socket to a server.

    Args:
        to: The ZeroMQ socket.
        address: tcp://HOST:PORT or ipc://FILE.
        key: File of the client's secret key; None for a server without keys.
        server_key: File of the server's public key; None for a server without keys.

    Raises:
        ServerError: The address or a key file is wrong.
    """
    if key is not None and server_key is not None:
        peers.secure_client(to, key, server_key)
    try:
        to.connect(address)
    except zmq.ZMQError as e:
        raise ServerError(
            f"'{address}' is no address of a server: {e}; write tcp://HOST:PORT, for instance "
            "tcp://127.0.0.1:5557"
        ) from None


def dial(context: Any, address: str, key: Path | None, server_key: Path | None) -> Any:
    """Return a DEALER socket that connects and reconnects to a server.

    `context` is a zmq.Context; connect() documents the other arguments. If the address or a key
    file is wrong, this function terminates the context and raises ServerError.
    """
    to = context.socket(zmq.DEALER)
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
        (zmq.IPV6, int("[" in address)),
    ):
        to.setsockopt(option, value)
    try:
        connect(to, address, key, server_key)
    except BaseException:
        to.close(0)
        context.term()
        raise
    return to


class Waker:
    """A pipe that wakes a thread: the thread polls it together with its sockets.

    wake() is safe from any thread, from a signal handler, and after close(). After close(), wake()
    writes nothing, because the closed descriptor's number may belong to another file.

    Attributes:
        descriptor: Reading end of the pipe, to poll.
    """

    def __init__(self) -> None:
        self.descriptor, self._in = open_nonblocking_pipe()
        self._lock = threading.RLock()

    def wake(self) -> None:
        """Make the descriptor readable."""
        with self._lock, suppress(BlockingIOError):
            if self._in >= 0:
                os.write(self._in, b"1")

    def clear(self) -> None:
        """Empty the pipe, so that `descriptor` is readable only after the next wake()."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 65536)

    def close(self) -> None:
        """Close the pipe. Idempotent. The caller must first make sure that no thread polls it."""
        with self._lock:
            if self._in >= 0:
                os.close(self._in)
                os.close(self.descriptor)
                self._in = -1


def describe_listener(address: str, has_keys: bool) -> str:
    """Connect to an address, and return a phrase for the user that says what listens there.

    Args:
        address: tcp://HOST:PORT or ipc://FILE.
        has_keys: Whether the client has keys.

    Raises:
        ServerError: What listens there is no gpupipe server, or is a server without keys although
            the client has keys.
    """
    try:
        with _connect(address) as connection:
            received = _exchange(connection, time.monotonic() + _TIMEOUT_SECONDS)
    except socket.gaierror as e:
        return f"its host name cannot be resolved ({e.strerror})"
    except (ConnectionRefusedError, FileNotFoundError):
        return "nothing listens there"
    except OSError as e:
        return f"it cannot be reached ({e})"
    if not received:
        return "something listens there, and says nothing"
    if received[:1] != _SIGNATURE[:1] or received[9:10] not in (b"", _SIGNATURE[9:10]):
        raise ServerError(
            f"{address}: what listens there does not speak ZeroMQ (it says {received[:30]!r}): is "
            "the port right?"
        )
    if len(received) >= 64 and _mechanism(received) == b"CURVE":
        return "it listens, and lets in only those whose keys it knows (key, server_key)"
    if (match := _SOCKET_TYPE.search(received)) is not None:
        _check_socket_type(address, match[1].decode(), has_keys)
    return "it listens, and has not answered yet"


def _check_socket_type(address: str, socket_type: str, has_keys: bool) -> None:
    """Raise ServerError if the peer is not a gpupipe server, or if only the client has keys.

    Args:
        address: The address of the peer, which does not use encryption.
        socket_type: Type of the peer's ZeroMQ socket, such as "PUSH".
        has_keys: Whether the client has keys.
    """
    if socket_type == _FUELS:
        raise ServerError(
            f"{address} speaks Fuel's protocol, and not gpupipe's (its socket is a ZeroMQ "
            "PUSH): start the server without --wire fuel, or read from "
            "it with Fuel's own ServerDataStream"
        )
    if socket_type != _OURS:
        raise ServerError(
            f"{address} is no server of gpupipe: it is a ZeroMQ {socket_type} socket, "
            f"and a server's is a {_OURS}"
        )
    if has_keys:
        raise ServerError(
            f"the server at {address} has no keys: leave out key and server_key, or start "
            "it with --keys and --allow"
        )


def _connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    if parts.scheme == "ipc":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(address.removeprefix("ipc://"))
        except BaseException:
            connection.close()
            raise
        return connection
    return socket.create_connection((parts.hostname or "", parts.port or 0), _TIMEOUT_SECONDS)


def _exchange(connection: socket.socket, until: float) -> bytes:
    """Exchange ZMTP greetings with the peer and return the received bytes.

    Stops when the socket type has arrived, when the peer names a security mechanism that is not
    NULL, when the peer disconnects, or at the time `until` of time.monotonic().
    """
    received = b""
    with suppress(OSError):
        for data, length in _GREETING:
            connection.sendall(data)
            while (
                len(received) < length
                and not _SOCKET_TYPE.search(received)
                and (left := until - time.monotonic()) > 0
            ):
                connection.settimeout(left)
                if not (chunk := connection.recv(4096)):
                    return received
                received += chunk
            if len(received) >= 64 and _mechanism(received) != b"NULL":
                return received
    return received


def _mechanism(received: bytes) -> bytes:
    return received[_MECHANISM].rstrip(b"\0")
