"""The sessions of clients: how they start, fall silent and end, and which pass each client reads.

The head of batch_leases.py has the rules and the terms.
"""

from collections.abc import Callable
from typing import Any

from gpupipe.errors import counted
from gpupipe.protocol import messages
from gpupipe.protocol.messages import MAX_UNACKED, Key
from gpupipe.server.batch_leases import BatchLeases
from gpupipe.server.clients_and_passes import Client, Idle, SessionStarted
from gpupipe.server.lease_state import LeaseState, Log, SessionEnded
from gpupipe.server.metrics import describe_silence
from gpupipe.server.options import ServerOptions
from gpupipe.server.pass_schedule import CountSteps, PassSchedule, RequestRefused

RETURN_SECONDS = 5.0
"""Seconds that new clients wait for the clients of a stopped server, which need about one second
to reconnect.
"""
_MAX_NAMED = 4


class Sessions:
    """The sessions of all clients of a server, with their passes and leases.

    The parameter `now` of the methods is in seconds, of a monotonic clock.

    Args:
        options: Mode, timeouts and limits.
        count_steps: Returns the number of steps of a pass, from (rank, epoch, position).
        first: (epoch, position) where the first pass of each partition starts.
        log: Writes a record to the write-ahead log.

    Attributes:
        state: The state that all parts share, and the messages to send.
        passes: The passes of all partitions.
        batches: The leases of single batches.
    """

    def __init__(
        self,
        options: ServerOptions,
        count_steps: CountSteps,
        first: tuple[int, int],
        log: Log = lambda record: None,
    ) -> None:
        self.state = LeaseState(options, first, log)
        self.passes = PassSchedule(self.state, count_steps)
        self.batches = BatchLeases(self.state, self.passes)

    # --- a session starts

    def is_overtaken(self, request: messages.OpenSession) -> bool:
        """Return whether the server already has a later request of this client."""
        client = self.state.clients.get(request.token)
        return client is not None and request.number <= client.request_number

    def settle_stopped_run(self, is_known: bool, now: float) -> None:
        """Decide, when a client connects, whether the clients of a stopped server continue.

        Args:
            is_known: Whether this client is one of them. If so, all of them may continue. If not,
                their sessions end, unless they may still reconnect.
            now: Seconds, of a monotonic clock.

        Raises:
            RequestRefused: This client is new, and the others may still reconnect.
        """
        stopped_at = self.state.stopped_at
        if stopped_at is not None and self.state.clients and not is_known:
            if now < stopped_at + RETURN_SECONDS:
                raise RequestRefused(
                    f"the server waits {RETURN_SECONDS:g} s for the clients of the last one, which "
                    "was stopped",
                    is_temporary=True,
                )
            for token in list(self.state.clients):
                self.end(token)
        self.state.stopped_at = None

    def open(self, request: messages.OpenSession, now: float, is_known: bool = False) -> Client:
        """Open a client's session, or continue it after a reconnect. The caller answers the client.

        Args:
            request: The client's message.
            now: Seconds, of a monotonic clock.
            is_known: Whether the request names this server's history, so that the client had a
                session here. If not, the batches in the request are another server's, and ignored.

        Raises:
            RequestRefused: The server has `max_clients` clients, or no partition for this one.
        """
        client = self.state.clients.get(request.token)
        if client is None:
            client = self._start(request, now, is_known)
        client.request_number, client.last_heard = request.number, now
        client.hwm = min(request.hwm, self.state.options.hwm)
        client.is_silent, client.revoked = False, []
        client.reconnect()
        held, consumed = (request.held, request.consumed) if is_known else ([], [])
        self.batches.acknowledge(client.token, consumed)
        self.batches.reconcile(client, held)
        return client

    def _start(self, request: messages.OpenSession, now: float, is_known: bool) -> Client:
        name = self._choose_partition(request)
        partition = self.state.partitions.get(name)
        if partition is not None and not (
            is_known or self.state.options.resume or self.state.members(partition)
        ):
            self.passes.drop(partition)
        process = request.host_id, request.pid, request.process_started
        self.state.commit(SessionStarted(request.token, name, request.name, *process))
        client = self.state.clients[request.token]
        client.is_late = not is_known and self.pass_in_progress(client, now) is not None
        return client

    def _choose_partition(self, request: messages.OpenSession) -> str:
        """Return the name of the partition for a new client.

        Raises RequestRefused if the server is full, or has no partition that fits the client.
        """
        options, clients = self.state.options, self.state.clients
        if len(clients) >= options.max_clients:
            raise RequestRefused(
                f"the server has {counted(len(clients), 'client')}, and takes no more: "
                "serve with a larger --max-clients",
                is_temporary=True,
            )
        if options.mode == "broadcast":
            return request.token
        if options.clients is not None:
            return self._choose_rank(request, options.clients)
        if request.world_size > 1:
            raise RequestRefused(
                f"{request.world_size} ranks need equal steps, and this server shares its "
                f"batches freely: serve with --clients {request.world_size}"
            )
        return "0"

    def _choose_rank(self, request: messages.OpenSession, count: int) -> str:
        if request.world_size not in (1, count):
            raise RequestRefused(
                f"this is rank {request.rank} of {request.world_size}, and the server deals out to "
                f"{count}: serve with --clients {request.world_size}"
            )
        for partition in self.state.partitions.values():
            is_fitting = request.world_size == 1 or partition.rank == request.rank
            if is_fitting and not self.state.members(partition):
                return partition.name
        taken = f"rank {request.rank} is" if request.world_size > 1 else f"all {count} places are"
        raise RequestRefused(
            f"{taken} taken on the server: by "
            f"{', '.join(c.session.name for c in self.state.clients.values())}",
            is_temporary=True,
        )

    def start_position(self, client: Client) -> tuple[int, int]:
        """Return (epoch, position) where a client begins if its user names no position."""
        others = [current.epoch for current in self.state.current_passes()]
        if self.state.options.mode == "broadcast" and client.partition.current is None and others:
            return max(others) + 1, 0
        return client.partition.next_position(self.state.first)

    def pass_in_progress(self, client: Client, now: float) -> messages.PassInProgress | None:
        """Return the progress of a new client's pass; None if the client can still get all of it.

        Also returns None if no pass is in progress.
        """
        current = client.partition.current
        if (
            current is None
            or current.is_over
            or not (current.done or len(current.leased) == current.steps)
        ):
            return None
        others = [c for c in self.state.members(client.partition) if c is not client]
        return messages.PassInProgress(
            current.steps - len(current.done) - len(current.leased),
            current.steps,
            [
                f"{other.session.name}{describe_silence(now - other.last_heard)}"[:300]
                for other in others[:_MAX_NAMED]
            ],
        )

    # --- a session ends

    def record_heartbeat(self, token: str, now: float) -> bool:
        """Record that a client sent a message, and tell it which leases it lost while silent.

        Returns False if the client has no session.
        """
        client = self.state.clients.get(token)
        if client is None:
            return False
        client.last_heard, client.is_silent = now, False
        if client.revoked:
            self.state.send(client, messages.Revoke(client.revoked))
            client.revoked = []
        return True

    def apply_timeouts(self, now: float, has_ended: Callable[[SessionStarted], bool]) -> None:
        """Apply the heartbeat timeout and the session timeout to all clients.

        Args:
            now: Seconds, of a monotonic clock.
            has_ended: Returns True if the client's process is known to have ended.
        """
        options = self.state.options
        for client in list(self.state.clients.values()):
            silence = now - client.last_heard
            if silence > options.session_timeout or has_ended(client.session):
                self.end(client.token)
            elif silence > options.heartbeat_timeout and not client.is_silent:
                client.is_silent = True
                client.revoked = client.leases[MAX_UNACKED:]
                self.batches.requeue(client.revoked)

    def close(self, token: str, consumed: list[Key]) -> None:
        """End a session at the client's request. First marks the batches in `consumed` as done."""
        client = self.state.clients.get(token)
        if client is not None:
            self.batches.mark_consumed(client, consumed)
            self.end(token)

    def end(self, token: str) -> None:
        """End a session and requeue all of its leases. Idempotent."""
        client = self.state.clients.get(token)
        if client is not None:
            self.batches.requeue(client.leases)
            self.state.commit(SessionEnded(token))
            self.passes.settle_all()

    # --- iterations

    def start_iteration(self, token: str, begin: messages.StartIteration) -> None:
        """Start a client's iteration: it enters a pass, or waits for one.

        Raises:
            RequestRefused: The position would take a pass from other clients, or the client's own
                pass was forgotten while it was away.
            StateError: There is no such epoch or position.
        """
        client = self.state.clients[token]
        client.phase, client.iteration = Idle(), begin.iteration
        current = client.partition.current
        if current is not None and client.is_late and begin.is_explicit:
            # the user named this position, so the client must not join the current pass instead
            client.entered_passes.add(current.number)
        client.is_late = False
        is_continued = self.passes.is_continued(client, begin)
        if not is_continued:
            self.batches.requeue(client.leases)
        self.passes.schedule(client, begin, is_continued)

    def end_iteration(self, token: str) -> None:
        """End a client's iteration and requeue all of its leases."""
        client = self.state.clients[token]
        client.phase = Idle()
        self.batches.requeue(client.leases)
        self.passes.settle_all()

    def end_iterations(self, pass_number: int) -> list[Client]:
        """End the iterations of all readers of a pass after an error, and return these clients."""
        readers = self.state.readers(pass_number)
        for client in readers:
            self.end_iteration(client.token)
        return readers

    def stats(self, now: float) -> dict[str, Any]:
        """Return the metrics of the partitions that have a pass, and of the clients."""
        partitions = [
            {
                "rank": partition.rank,
                "epoch": current.epoch,
                "position": current.position,
                "done": len(current.done),
                "steps": current.steps,
            }
            for partition in self.state.partitions.values()
            if (current := partition.current) is not None
        ]
        clients = [
            {
                "name": c.session.name,
                "partition": c.partition.rank,
                "pass": c.pass_number,
                "leased": len(c.leases),
                "hwm": c.hwm,
                "consumed": c.num_consumed,
                "silent_seconds": round(now - c.last_heard, 3),
            }
            for c in self.state.clients.values()
        ]
        return {"partitions": partitions, "clients": clients}
