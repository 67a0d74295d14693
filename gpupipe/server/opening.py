"""Opens a server: checks and splits the loader to serve, continues from the state file, and opens
the listening socket.
"""

from __future__ import annotations

import logging
import time
from secrets import token_hex
from typing import Any

import zmq

from gpupipe.dataset.population import Growing
from gpupipe.engines.base import Engine
from gpupipe.engines.remote.description import describe, split_pipeline
from gpupipe.errors import ServerError
from gpupipe.loader import Loader, open_loader
from gpupipe.protocol import codec, keys, messages, sockets
from gpupipe.server.leases import Leases
from gpupipe.server.options import ServerOptions
from gpupipe.server.plans import Plans
from gpupipe.server.write_ahead_log import WriteAheadLog

_log = logging.getLogger("gpupipe")
_MAX_QUEUED_ANSWERS = 100_000
_MAX_REFUSED = 100
"""Refused keys that are logged: anyone can connect with any number of keys."""
_SOCKET_BUFFER = 4 << 20
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10000
"""ZeroMQ's own heartbeats: how often they are sent, and when a connection without them is closed.
"""


def prepare_loader(loader: Loader, options: ServerOptions) -> tuple[Loader, dict[str, Any]]:
    """Return the loader whose batches are sent, and its description for clients.

    With `ship: uint8` that is a new loader without the steps that clients do; `loader` is closed.

    Raises:
        ServerError: This loader cannot be served, or its description is too long.
    """
    if isinstance(loader.config.source, Growing):
        raise ServerError(
            f"data.source: {loader.config.source_name} has other samples in every epoch, "
            "which a server cannot deal out: load it where it is trained on; "
            "its workers, 'gpupipe cache fill', may run on another machine"
        )
    if not isinstance(loader.engine, Engine):
        raise ServerError(
            "what a server serves cannot be served again: connect to the server itself, or "
            "serve the config where its data is"
        )
    served_loader, tail = (loader, ()) if options.ship == "batch" else _without_client_steps(loader)
    description = describe(loader.config, loader.index, tail, loader.sampler)
    description["mode"] = options.mode
    _check_fits(description)
    return served_loader, description


def _without_client_steps(loader: Loader) -> tuple[Loader, tuple[int, ...]]:
    """Replace a loader by one that makes uint8 images. Also return the steps left to clients.

    Raises ServerError if the pipeline cannot be split.
    """
    shorter, tail = split_pipeline(loader.config)
    loader.close()
    return open_loader(shorter), tail


def _check_fits(description: dict[str, Any]) -> None:
    """Raise ServerError if the description does not fit in one message."""
    size = len(codec.encode(messages.Stats(description)))
    if size > codec.MESSAGE_LIMIT // 2:
        raise ServerError(
            f"what is served takes {size:,} bytes to say (its class names, most likely), "
            f"and {codec.MESSAGE_LIMIT // 2:,} is the limit"
        )


def open_write_ahead_log(
    loader: Loader, options: ServerOptions, pipeline_fingerprint: str
) -> WriteAheadLog | None:
    """Open and lock the state file; None if the server keeps no state. Raises ServerError."""
    if options.state is None:
        return None
    config = loader.config
    batch = config.batch.fingerprint
    order = config.loader.model_dump(
        mode="json", include={"batch_size", "shuffle", "seed", "last_batch", "shard"}
    )
    work = {
        "data": loader.index.fingerprint,
        "pipeline": pipeline_fingerprint,
        **({"batch": batch} if batch else {}),
        **order,
        **loader.sampler.selection.settings,
        "mode": options.mode,
        "clients": options.clients,
    }
    wal = WriteAheadLog(options.state, work)
    if options.fresh:
        wal.forget()
    return wal


def restore_leases(
    loader: Loader, options: ServerOptions, plans: Plans, wal: WriteAheadLog | None
) -> tuple[Leases, str, bool]:
    """Return the leases, the name of their history, and whether the state file had any.

    Raises:
        ServerError: The state file cannot be written.
        StateError: The state file belongs to other work, or is damaged.
    """
    first = loader.sampler.epoch, loader.sampler.position
    history = token_hex(16)
    if wal is None:
        return Leases(options, plans.steps, first), history, False
    leases = Leases(options, plans.steps, first, wal.log)
    try:
        has_resumed = wal.resume(leases.state, history, time.monotonic(), options.resume)
    except BaseException:
        wal.close()
        raise
    return leases, wal.history, has_resumed


def listen(options: ServerOptions) -> tuple[Any, Any, Any]:
    """Return (ZeroMQ context, authenticator or None, bound ROUTER socket). Raises ServerError."""
    context, authenticator = zmq.Context(io_threads=2), None
    socket = context.socket(zmq.ROUTER)
    for option, value in (
        (zmq.LINGER, 200),
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
    try:
        if options.keys is not None and options.allowed is not None:
            authenticator = _authenticator(context, options)
            keys.secure_server(socket, options.keys)
        sockets.bind(socket, options.address)
    except BaseException:
        socket.close(0)
        if authenticator is not None:
            authenticator.stop()
        context.term()
        raise
    return context, authenticator, socket


def _authenticator(context: Any, options: ServerOptions) -> Any:
    """Start the thread that checks the key of every new connection against the allowed ones."""
    from zmq.auth.thread import ThreadAuthenticator

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(
        domain="gpupipe", credentials_provider=AllowedKeys(str(options.allowed))
    )
    return authenticator


class AllowedKeys:
    """Decides which clients may connect, and logs each key that it refuses once.

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
