"""Answers the messages of clients, and passes errors on to them. service.py owns the socket.

Requests with long answers are limited, so that a peer that asks and never reads cannot fill the
server's memory with answers.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gpupipe.errors import GpupipeError, SampleError, StateError, counted
from gpupipe.protocol import messages
from gpupipe.server.clients_and_passes import Client
from gpupipe.server.connections import Connections
from gpupipe.server.flood_guard import TokenBucket
from gpupipe.server.pass_schedule import RequestRefused
from gpupipe.server.served_work import Plans
from gpupipe.server.sessions import Sessions

_log = logging.getLogger("gpupipe")
_MAX_CONNECTIONS = 10_000
"""Maximum number of rate limits to keep; that of the connection idle for longest is forgotten."""
_FAREWELL_SECONDS = 5.0
"""Seconds to wait, after the engine failed, until all clients have acknowledged the error."""


class RateLimits:
    """Limits the messages with long answers, OpenSession and GetStats, of each connection.

    A connection may send 20 of them at once, and then 4 a second.
    """

    def __init__(self) -> None:
        self._bucket = lru_cache(_MAX_CONNECTIONS)(lambda route: TokenBucket(20, 4, 0.0))

    def allow(self, route: bytes, now: float) -> bool:
        """Return whether a connection gets an answer now. `now`: seconds, of a monotonic clock."""
        return self._bucket(route).take(1, now)


class FinalError:
    """The error that ends the server, if any, and the clients that have not acknowledged it yet.

    A message sent right before the socket closes may not arrive: a client whose connection ends
    drops what it has not read. So the server waits until all clients have acknowledged the error.

    Attributes:
        message: The Failed message for clients, or None as long as the engine works.
    """

    def __init__(self) -> None:
        self.message: messages.Failed | None = None
        self._uninformed: set[str] = set()
        self._deadline = 0.0

    def announce(self, message: messages.Failed, tokens: set[str]) -> None:
        """Store the error message, and start to wait until clients acknowledge it.

        Args:
            message: The message, which the caller has sent.
            tokens: The tokens of the clients that it was sent to.
        """
        self.message, self._uninformed = message, tokens
        self._deadline = time.monotonic() + _FAREWELL_SECONDS

    def acknowledge(self, token: str) -> None:
        """Record that a client has acknowledged the error."""
        self._uninformed.discard(token)

    def may_close(self, connected: set[str]) -> bool:
        """Return whether all connected clients acknowledged the error, or five seconds passed.

        `connected`: tokens of the clients that have a connection.
        """
        return not self._uninformed & connected or time.monotonic() > self._deadline


class Dispatcher:
    """Answers the messages of clients. To call a method, the caller must hold the server's lock.

    Args:
        sessions: Sessions, passes and leases.
        connections: Queues the answers.
        plans: The plans of all passes.
        history: Token of the server's sequence of passes. A server that resumes keeps it.
        description: Describes what is served, for clients.
        stats: Returns the metrics of the server.

    Attributes:
        final_error: The error that ends the server.
    """

    def __init__(
        self,
        sessions: Sessions,
        connections: Connections,
        plans: Plans,
        history: str,
        description: dict[str, Any],
        stats: Callable[[], dict[str, Any]],
    ) -> None:
        self._sessions, self._connections, self._plans = sessions, connections, plans
        self._history, self._description, self._stats = history, description, stats
        self._rate_limits = RateLimits()
        self.final_error = FinalError()

    def handle(self, route: bytes, message: messages.ToServer) -> None:
        """Handle a message that arrived on the connection `route`."""
        token = self._connections.token_of_route.get(route)
        has_long_answer = isinstance(message, messages.GetStats | messages.OpenSession)
        if has_long_answer and not self._rate_limits.allow(route, time.monotonic()):
            return
        if isinstance(message, messages.GetStats):
            self._connections.answer(route, messages.Stats(self._stats()))
        elif isinstance(message, messages.OpenSession):
            self._open_session(route, message)
        elif isinstance(message, messages.CloseSession):
            self._sessions.close(message.token, message.consumed)
            self._connections.answer(route, messages.SessionClosed())
        elif token is None or not self._sessions.record_heartbeat(token, time.monotonic()):
            self._connections.answer(route, messages.UnknownSession())
        else:
            self._handle_in_session(token, message)

    def _open_session(self, route: bytes, request: messages.OpenSession) -> None:
        if request.version != messages.VERSION:
            reason = (
                f"the server speaks version {messages.VERSION} of the protocol, and this client "
                f"version {request.version}: use the same gpupipe on both sides"
            )
            self._connections.answer(route, messages.Refused(reason, False))
            return
        if self.final_error.message is not None:
            self._connections.answer(route, self.final_error.message)
            return
        if self._sessions.is_overtaken(request):
            return
        now, is_known = time.monotonic(), request.history == self._history
        self.apply_timeouts()  # first, so that no new client joins a pass of dead clients
        try:
            self._sessions.settle_stopped_run(is_known, now)
            client = self._sessions.open(request, now, is_known)
        except RequestRefused as e:
            self._connections.answer(route, messages.Refused(str(e), e.is_temporary))
            return
        self._connections.open(route, request, client.hwm)
        opened = messages.SessionOpened(
            messages.VERSION,
            self._history,
            os.getpid(),
            client.leases,
            *self._sessions.start_position(client),
            self._plans.global_rank(client.partition.rank),
            self._plans.world_size,
            self._description,
            self._sessions.pass_in_progress(client, now) if client.is_late else None,
        )
        self._connections.answer(route, opened)

    def _handle_in_session(self, token: str, message: messages.ToServer) -> None:
        match message:
            case messages.Acknowledge():
                self._connections.release_slots(token, message.slots)
                if message.keys:
                    self._sessions.batches.acknowledge(token, message.keys)
            case messages.Ping():
                self._connections.send(token, messages.Pong())
            case messages.EndIteration():
                self._sessions.end_iteration(token)
                self.final_error.acknowledge(token)
            case messages.StartIteration():
                try:
                    self._sessions.start_iteration(token, message)
                except (RequestRefused, StateError) as e:
                    self._connections.send(token, messages.Refused(str(e)[:4000], False))

    def apply_timeouts(self) -> None:
        """Requeue batches of silent clients; end sessions that timed out or whose process ended."""
        self._sessions.apply_timeouts(time.monotonic(), self._connections.has_ended)

    def send_failure(self, error: Exception, clients: list[Client], is_final: bool) -> None:
        """Send an error to the clients whose iterations it ended.

        Args:
            error: The error.
            clients: The clients that get the error.
            is_final: Whether the error also ends the server.
        """
        path, reason = (error.path, error.reason) if isinstance(error, SampleError) else ("", "")
        text = str(error) if isinstance(error, GpupipeError) else f"the server failed: {error!r}"
        failed = messages.Failed(
            type(error).__name__, text[:4000], path[:4000], reason[:4000], is_final
        )
        for client in clients:
            self._connections.send(client.token, failed)
        self._connections.flush()
        if is_final:
            self.final_error.announce(failed, {client.token for client in clients})
        else:
            _log.warning("gpupipe: %s got an error: %s", counted(len(clients), "client"), text)
