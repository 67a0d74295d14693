"""The state of a server's sessions, passes and leases.

Only `LeaseState.apply` changes the state that must survive the process, by one record at a time. A
running server calls `commit`, which applies a record and logs it. A server that starts again
applies the records of its log (write_ahead_log.py), and so reaches the same state.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from gpupipe.protocol import messages
from gpupipe.server.clients_and_passes import (
    Client,
    EpochPass,
    Idle,
    Partition,
    Reconnecting,
    SessionStarted,
)
from gpupipe.server.options import ServerOptions


class _Record(Struct, array_like=True, frozen=True):
    pass


class NextPass(_Record, tag="runs", frozen=True):
    """The next pass to start gets this number."""

    number: int


class SessionEnded(_Record, tag="gone", frozen=True):
    """The session of a client has ended. Its leases were requeued before."""

    token: str


class PassStarted(_Record, tag="run", frozen=True):
    """A partition reads a new pass; clients_and_passes.EpochPass explains the fields."""

    partition: str
    number: int
    epoch: int
    position: int
    steps: int


class PassDropped(_Record, tag="anew", frozen=True):
    """A partition starts over: passes before `first_pass` are forgotten."""

    partition: str
    first_pass: int


class StepLeased(_Record, tag="lease", frozen=True):
    """A client leases the batch of a step."""

    pass_number: int
    step: int
    token: str


class StepRequeued(_Record, tag="back", frozen=True):
    """A leased step is queued again."""

    pass_number: int
    step: int


class StepDone(_Record, tag="done", frozen=True):
    """A step was consumed, or had no sample that could be read."""

    pass_number: int
    step: int


class StepsDone(_Record, tag="all done", frozen=True):
    """All steps of a pass that were done when the write-ahead log was compacted."""

    pass_number: int
    steps: list[int]


class ServerStopped(_Record, tag="stopped", frozen=True):
    """The server was stopped, and did not crash."""


StepRecord = StepLeased | StepRequeued | StepDone
_PassRecord = NextPass | PassStarted | PassDropped | StepsDone
Record = SessionStarted | SessionEnded | _PassRecord | StepRecord | ServerStopped
Log = Callable[[Record], None]


class LeaseState:
    """All sessions, partitions and leases of a server, and the messages about them.

    Args:
        options: Mode, timeouts and limits.
        first: (epoch, position) where the first pass of each partition starts.
        write: Writes a record to the write-ahead log.

    Attributes:
        options: Mode, timeouts and limits.
        first: (epoch, position) where the first pass of each partition starts.
        clients: Sessions by client token.
        partitions: Partitions by name: the rank, or the client token with `broadcast`.
        next_pass: Number of the next pass.
        stopped_at: Start time of this server, in seconds of its monotonic clock, while it waits
            for the clients of a server that was stopped. Else None.
        outbox: (client token, message) pairs to send, in order.
    """

    def __init__(self, options: ServerOptions, first: tuple[int, int], write: Log) -> None:
        self.options, self.first, self._write = options, first, write
        self.clients: dict[str, Client] = {}
        self.partitions: dict[str, Partition] = {}
        self.next_pass = 0
        self.stopped_at: float | None = None
        self.outbox: list[tuple[str, messages.ToClient]] = []
        if options.mode == "share":
            for rank in range(options.clients or 1):
                self.partitions[str(rank)] = Partition(str(rank), rank)

    # --- changes

    def commit(self, record: Record) -> None:
        """Apply a record and log it. Call this before you send a message about the record."""
        self.apply(record)
        self._write(record)

    def apply(self, record: Record) -> None:
        """Change the state as the record says. Ignores steps of passes that are forgotten."""
        match record:
            case StepLeased() | StepRequeued() | StepDone():
                self._apply_to_step(record)
            case SessionStarted(token, name):
                partition = self.partitions.setdefault(name, Partition(name, 0))
                self.clients[token] = Client(record, partition, self.options.hwm)
            case SessionEnded(token):
                client = self.clients.pop(token, None)
                if client is not None and self.options.mode == "broadcast":
                    self.partitions.pop(client.partition.name, None)
            case PassStarted(name, number):
                self.partitions[name].current = EpochPass(
                    number, record.epoch, record.position, record.steps
                )
                self.next_pass = max(self.next_pass, number + 1)
            case PassDropped(name, first_pass):
                self.partitions[name].current = None
                self.partitions[name].first_pass = first_pass
            case NextPass(number):
                self.next_pass = number
            case StepsDone(number, steps):
                if (current := self.find_pass(number)) is not None:
                    current.done.update(steps)

    def _apply_to_step(self, record: StepRecord) -> None:
        current = self.find_pass(record.pass_number)
        if current is None:
            return
        key = record.pass_number, record.step
        holder = self.clients.get(current.leased.get(record.step, ""))
        if holder is not None:
            holder.leases.remove(key)
        match record:
            case StepDone():
                current.finish(record.step)
            case StepRequeued():
                current.requeue_leased(record.step)
            case StepLeased() if record.token in self.clients:
                current.lease(record.step, record.token)
                self.clients[record.token].leases.append(key)

    def snapshot(self) -> Iterator[Record]:
        """Yield the records that rebuild this state when they are applied to a new state."""
        yield NextPass(self.next_pass)
        for client in self.clients.values():
            yield client.session
        for partition in self.partitions.values():
            if partition.first_pass:
                yield PassDropped(partition.name, partition.first_pass)
            current = partition.current
            if current is not None:
                yield PassStarted(
                    partition.name, current.number, current.epoch, current.position, current.steps
                )
                yield StepsDone(current.number, sorted(current.done))
                for step, token in current.leased.items():
                    yield StepLeased(current.number, step, token)

    def continue_after_restart(self, now: float, was_stopped: bool = False) -> None:
        """Prepare this state for serving. The caller must have applied the last server's records.

        Queues all steps that are neither leased nor done. An unfinished pass is not replaced while
        a client with leases may still reconnect.

        Args:
            now: Seconds, of a monotonic clock.
            was_stopped: Whether the last server was stopped. If so, only its clients may continue.
        """
        self.stopped_at = now if was_stopped else None
        for partition in self.partitions.values():
            if partition.current is not None:
                partition.current.requeue_unfinished()
        for client in self.clients.values():
            client.last_heard = now
            client.phase = Reconnecting() if client.leases else Idle()

    def send(self, client: Client, message: messages.ToClient) -> None:
        """Queue a message to a client."""
        self.outbox.append((client.token, message))

    # --- queries

    def members(self, partition: Partition) -> list[Client]:
        """Return the clients of a partition."""
        return [c for c in self.clients.values() if c.partition is partition]

    def readers(self, pass_number: int) -> list[Client]:
        """Return the clients that read a pass."""
        return [c for c in self.clients.values() if c.pass_number == pass_number]

    def current_passes(self) -> list[EpochPass]:
        """Return the current passes of all partitions."""
        return [p.current for p in self.partitions.values() if p.current is not None]

    def find_pass(self, pass_number: int) -> EpochPass | None:
        """Return the pass with this number if it is the current one of a partition, else None."""
        return next((p for p in self.current_passes() if p.number == pass_number), None)
