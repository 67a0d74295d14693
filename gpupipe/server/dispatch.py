"""Answers the messages of clients. service.py receives and sends them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpupipe.errors import StateError
from gpupipe.protocol import codec, messages
from gpupipe.server.client_state import Client, RequestRefused
from gpupipe.server.connections import Connections
from gpupipe.server.leases import Leases
from gpupipe.server.plans import Plans
from gpupipe.server.rate_limits import RateLimits

_FAREWELL_SECONDS = 5.0
"""Seconds to wait, after the engine failed, until all clients have acknowledged the error."""


class FinalError:
    """The error that ends the server, once there is one, and which clients have acknowledged it.

    A message sent right before the socket closes may not arrive: a client whose connection ends
    drops what it has not read. So the server waits until all clients have acknowledged the error.

    Attributes:
        message: The message about it, or None as long as the engine works.
    """

    def __init__(self) -> None:
        self.message: messages.Failed | None = None
        self._uninformed: set[str] = set()
        self._deadline = 0.0

    def announce(self, message: messages.Failed, tokens: set[str]) -> None:
        """Set the error, which was sent to the clients `tokens`."""
        self.message, self._uninformed = message, tokens
        self._deadline = time.monotonic() + _FAREWELL_SECONDS

    def acknowledge(self, token: str) -> None:
        """Record that a client has the error."""
        self._uninformed.discard(token)

    def may_close(self, connected: set[str]) -> bool:
        """Return whether all clients that are still connected have the error."""
        return not self._uninformed & connected or time.monotonic() > self._deadline


@dataclass
class Dispatcher:
    """Answers messages: every decision is that of the leases. The caller holds the server's lock.

    Attributes:
        leases: Sessions, passes and leases.
        connections: Where answers are queued.
        plans: The plans of all passes.
        history: Names the sequence of passes. It stays the same over a restart that resumes.
        description: Describes what is served, for clients.
        stats: Returns the metrics of the server.
        final_error: The error that ends the server.
    """

    leases: Leases
    connections: Connections
    plans: Plans
    history: str
    description: dict[str, Any]
    stats: Callable[[], dict[str, Any]]
    final_error: FinalError
    _rate_limits: RateLimits = field(default_factory=RateLimits)

    def handle(self, route: bytes, message: messages.ToServer) -> None:
        """Handle a message that arrived on a connection."""
        token = self.connections.token_of_route.get(route)
        has_long_answer = isinstance(message, messages.GetStats | messages.OpenSession)
        if has_long_answer and not self._rate_limits.allow(route, time.monotonic()):
            return
        if isinstance(message, messages.GetStats):
            self._answer(route, messages.Stats(self.stats()))
        elif isinstance(message, messages.OpenSession):
            self._open_session(route, message)
        elif isinstance(message, messages.CloseSession):
            self.leases.close_session(message.token, message.consumed)
            self._answer(route, messages.SessionClosed())
        elif token is None or not self.leases.record_heartbeat(token, time.monotonic()):
            self._answer(route, messages.UnknownSession())
        else:
            self._handle_in_session(token, message)

    def _open_session(self, route: bytes, request: messages.OpenSession) -> None:
        if request.version != messages.VERSION:
            reason = (
                f"the server speaks version {messages.VERSION} of the protocol, and this client "
                f"version {request.version}: use the same gpupipe on both sides"
            )
            self._answer(route, messages.Refused(reason, False))
            return
        if self.final_error.message is not None:
            self._answer(route, self.final_error.message)
            return
        if self.leases.is_overtaken(request):
            return
        now, is_known = time.monotonic(), request.history == self.history
        # first, so that no new client joins a pass of dead clients
        self.leases.apply_timeouts(now, self.connections.has_ended)
        try:
            self.leases.settle_stopped_run(is_known, now)
            client = self.leases.open_session(request, now, is_known)
        except RequestRefused as e:
            self._answer(route, messages.Refused(str(e), e.is_temporary))
            return
        self.connections.open(route, request, client.hwm)
        self._answer(route, self._session_opened(client, now))

    def _session_opened(self, client: Client, now: float) -> messages.SessionOpened:
        epoch, position = self.leases.start_position(client)
        return messages.SessionOpened(
            messages.VERSION,
            self.history,
            os.getpid(),
            client.leases,
            epoch,
            position,
            self.plans.global_rank(client.partition.rank),
            self.plans.world_size,
            self.description,
            self.leases.pass_in_progress(client, now) if client.is_late else None,
        )

    def _handle_in_session(self, token: str, message: messages.ToServer) -> None:
        if isinstance(message, messages.Acknowledge):
            self.connections.release_slots(token, message.slots)
            if message.keys:
                self.leases.acknowledge(token, message.keys)
        elif isinstance(message, messages.Ping):
            self.connections.send(token, messages.Pong())
        elif isinstance(message, messages.EndIteration):
            self.leases.end_iteration(token)
            self.final_error.acknowledge(token)
        elif isinstance(message, messages.StartIteration):
            try:
                self.leases.start_iteration(token, message)
            except (RequestRefused, StateError) as e:
                self.connections.send(token, messages.Refused(str(e)[:4000], False))

    def _answer(self, route: bytes, message: messages.ToClient) -> None:
        self.connections.send_queue.append((route, [codec.encode(message)]))
