"""Finds out what listens at the address of a server that does not answer.

ZeroMQ does not report a peer whose socket type does not match, and does not reconnect to it. So
this connects without ZeroMQ and exchanges the greeting of ZMTP 3.0
(https://rfc.zeromq.org/spec/23). Then it reads the peer's READY command, which names its socket
type, and disconnects.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpupipe.errors import ServerError

_TIMEOUT_SECONDS = 1.0
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_MECHANISM = slice(12, 32)
_GREETING = (
    (_SIGNATURE, 10),
    (b"\x03", 64),
    (b"\0" + b"NULL".ljust(20, b"\0") + bytes(32), 1 << 16),
)
"""(bytes to send, number of bytes to receive before the next item is sent). The order matters: a
peer with another security mechanism disconnects a client that sends NULL.
"""
_SOCKET_TYPE = re.compile(rb"\x0bSocket-Type\0\0\0.([A-Z]+)", re.DOTALL)
_OURS = "ROUTER"
_FUELS = "PUSH"


@dataclass(frozen=True)
class Peer:
    """What listens at an address.

    Attributes:
        text: A description for the user.
        socket_type: ZeroMQ's name of the socket type, such as "ROUTER", or "" if unknown.
        is_zeromq: False if it certainly does not speak ZeroMQ.
    """

    text: str
    socket_type: str = ""
    is_zeromq: bool = True


def look_at(address: str, seconds: float = _TIMEOUT_SECONDS) -> Peer:
    """Connect to an address and find out what listens there.

    Args:
        address: tcp://HOST:PORT or ipc://FILE.
        seconds: Time limit for the connection, and again for the exchange.
    """
    try:
        with _connect(address, seconds) as connection:
            return _describe_peer(_exchange(connection, time.monotonic() + seconds))
    except socket.gaierror as e:
        return Peer(f"its host name cannot be resolved ({e.strerror})")
    except (ConnectionRefusedError, FileNotFoundError):
        return Peer("nothing listens there")
    except OSError as e:
        return Peer(f"it cannot be reached ({e})")


def check(address: str, has_keys: bool) -> Peer:
    """Find out what listens at an address.

    Args:
        address: tcp://HOST:PORT or ipc://FILE.
        has_keys: This side has keys.

    Raises:
        ServerError: It is certain that no server of gpupipe can answer there.
    """
    peer = look_at(address)
    if not peer.is_zeromq:
        raise ServerError(f"{address}: {peer.text}: is the port right?")
    if peer.socket_type == _FUELS:
        raise ServerError(
            f"{address} speaks Fuel's protocol, and not gpupipe's (its socket is a ZeroMQ "
            "PUSH): start the server without --wire fuel, or read from "
            "it with Fuel's own ServerDataStream"
        )
    if peer.socket_type not in ("", _OURS):
        raise ServerError(
            f"{address} is no server of gpupipe: it is a ZeroMQ {peer.socket_type} socket, "
            f"and a server's is a {_OURS}"
        )
    if peer.socket_type == _OURS and has_keys:
        raise ServerError(
            f"the server at {address} has no keys: leave out key and server_key, or start "
            "it with --keys and --allow"
        )
    return peer


def _connect(address: str, seconds: float) -> socket.socket:
    parts = urlsplit(address)
    if parts.scheme == "ipc":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(seconds)
            connection.connect(address.removeprefix("ipc://"))
        except BaseException:
            connection.close()
            raise
        return connection
    return socket.create_connection((parts.hostname or "", parts.port or 0), seconds)


def _exchange(connection: socket.socket, until: float) -> bytes:
    """Exchange greetings and return the received bytes.

    It stops after the socket type, at another mechanism than NULL, at the end of the connection, or
    at the time `until`.
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


def _describe_peer(received: bytes) -> Peer:
    if not received:
        return Peer("something listens there, and says nothing")
    if received[:1] != _SIGNATURE[:1] or received[9:10] not in (b"", _SIGNATURE[9:10]):
        return Peer(
            f"what listens there does not speak ZeroMQ (it says {received[:30]!r})", is_zeromq=False
        )
    if len(received) >= 64 and _mechanism(received) == b"CURVE":
        return Peer("it listens, and lets in only those whose keys it knows (key, server_key)")
    match = _SOCKET_TYPE.search(received)
    return Peer("it listens, and has not answered yet", match[1].decode() if match else "")
