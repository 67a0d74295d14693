"""The state of each client, and of each pass over an epoch with all of its steps.

Both are plain state: lease_state.py applies records to them, and pass_schedule.py decides which
client reads which pass.
"""

import heapq
from dataclasses import dataclass, field

from msgspec import Struct

from gpupipe.protocol.messages import Key


@dataclass
class EpochPass:
    """A pass over an epoch. Each of its steps is queued, being made, leased or done.

        queued ──take──> making ──lease──> leased ──finish──> done
          ^                 │                 │
          └─requeue_unmade──┴─requeue_leased──┘

        >>> current = EpochPass(number=0, epoch=0, position=0, steps=2)
        >>> current.take(), current.take(), current.take()
        (0, 1, None)
        >>> current.lease(0, "token"); current.finish(0); current.requeue_unmade(1)
        >>> current.take()
        1

    The queued steps are those in `requeued`, then all from `next_new` on. Steps are leased in
    order: a step whose batch is ready waits for earlier steps that are queued or being made.

    Attributes:
        number: Counts all passes of a server, from 0.
        epoch: The epoch that is read.
        position: Number of samples at the start of the epoch that this pass skips.
        steps: Number of steps.
        next_new: The first of the steps that were never taken.
        requeued: Heap of requeued steps.
        making: Steps that are being made.
        leased: Leased steps, and the token of the client that leases each.
        done: Steps that are consumed, or had no sample that could be read.
    """

    number: int
    epoch: int
    position: int
    steps: int
    next_new: int = 0
    requeued: list[int] = field(default_factory=list)
    making: set[int] = field(default_factory=set)
    leased: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        """Whether all steps of this pass are done."""
        return len(self.done) == self.steps

    @property
    def has_queued(self) -> bool:
        """Whether a step of this pass is left to make: neither being made, nor leased, nor done."""
        return bool(self.requeued) or self.next_new < self.steps

    @property
    def num_taken(self) -> int:
        """Number of steps that are being made, leased or done."""
        return self.next_new - len(self.requeued)

    @property
    def num_making_in_order(self) -> int:
        """Number of steps that are being made and come before all queued steps."""
        queued = self._first_queued
        return sum(step < queued for step in self.making)

    @property
    def _first_queued(self) -> int:
        return self.requeued[0] if self.requeued else self.next_new

    def is_first(self, step: int) -> bool:
        """Return whether no earlier step is queued or being made.

        Args:
            step: The number of a training step in this pass, from 0.
        """
        return step <= self._first_queued and step <= min(self.making, default=step)

    def is_all_leased_to(self, token: str) -> bool:
        """Return whether the client of `token` leases all steps that are not done."""
        is_all_leased = not self.has_queued and not self.making
        return is_all_leased and set(self.leased.values()) <= {token}

    @property
    def start(self) -> tuple[int, int]:
        """(epoch, position) where the pass starts."""
        return self.epoch, self.position

    def take(self) -> int | None:
        """Take the next step to make, requeued steps first; None if none is queued."""
        if self.requeued:
            step = heapq.heappop(self.requeued)
        elif self.next_new < self.steps:
            step, self.next_new = self.next_new, self.next_new + 1
        else:
            return None
        self.making.add(step)
        return step

    def lease(self, step: int, token: str) -> None:
        """Lease a step that is in `making` or `requeued` to the client with this token."""
        self._unqueue(step)
        self.leased[step] = token

    def requeue_leased(self, step: int) -> None:
        """Requeue a leased step. Does nothing if the step is not leased."""
        if self.leased.pop(step, None) is not None:
            heapq.heappush(self.requeued, step)

    def requeue_unmade(self, step: int) -> None:
        """Requeue a step that was taken but not leased. Does nothing for any other step."""
        if step in self.making:
            self.making.remove(step)
            heapq.heappush(self.requeued, step)

    def can_finish(self, step: int) -> bool:
        """Return whether a step was taken and is not done yet."""
        return step not in self.done and 0 <= step < self.next_new

    def finish(self, step: int) -> None:
        """Mark a step as done."""
        self._unqueue(step)
        self.leased.pop(step, None)
        self.done.add(step)

    def _unqueue(self, step: int) -> None:
        """Remove a step from `making` and from `requeued`."""
        self.making.discard(step)
        if step in self.requeued:
            self.requeued.remove(step)
            heapq.heapify(self.requeued)

    def requeue_unfinished(self) -> None:
        """Requeue all steps that are neither leased nor done. Call it when the server restarts."""
        self.making = set()
        self.next_new = self.steps
        self.requeued = [
            step for step in range(self.steps) if step not in self.done and step not in self.leased
        ]


@dataclass
class Partition:
    """A sequence of passes over the plans of one rank.

    Attributes:
        name: The rank as text, or the client's token with `broadcast`.
        rank: Rank among the partitions of this server.
        current: The current pass, or None.
        first_pass: Number of the first pass since the partition last started over. Earlier passes
            are forgotten.
    """

    name: str
    rank: int
    current: EpochPass | None = None
    first_pass: int = 0

    def next_position(self, first: tuple[int, int]) -> tuple[int, int]:
        """Return (epoch, position) where a client begins; `first` if no pass is current."""
        if self.current is None:
            return first
        return (self.current.epoch + 1, 0) if self.current.is_over else self.current.start


class SessionStarted(Struct, array_like=True, tag="client", frozen=True):
    """Record in the write-ahead log: the session of a client has started.

    `partition` is the name of the client's partition. messages.OpenSession explains the other
    fields.
    """

    token: str
    partition: str
    name: str
    host_id: str
    pid: int
    process_started: str


@dataclass(frozen=True)
class Idle:
    """The client reads no pass."""


@dataclass(frozen=True)
class Reconnecting:
    """The client lost its connection or the server in the middle of a pass, and may continue it."""


@dataclass(frozen=True)
class Waiting:
    """The client waits for a pass to start at this epoch and position."""

    epoch: int
    position: int


@dataclass(frozen=True)
class Reading:
    """The client reads the pass with this number."""

    pass_number: int


@dataclass(frozen=True)
class BetweenPasses:
    """The client's pass has just ended, and the client has not sent StartIteration yet."""


Phase = Idle | Reconnecting | Waiting | Reading | BetweenPasses
"""The phase of a client, which sessions.py and pass_schedule.py change:

    Idle ──StartIteration──> Waiting ──pass starts──> Reading ──pass ends──> BetweenPasses
     ^  └──────────────StartIteration──────────────────^ │ ^                     │
     └──────────────────EndIteration─────────────────────┤ └───StartIteration────┘
                                                         └─OpenSession──> Reconnecting
"""


@dataclass
class Client:
    """What the server knows of one client, during the client's session.

    Attributes:
        session: The record of the session in the write-ahead log: token, name and process.
        partition: The client's partition.
        hwm: Number of batches that the client may hold.
        last_heard: Time of the client's last message, in seconds of the server's monotonic clock.
        request_number: The field `number` of the client's last OpenSession.
        leases: Batches that the client leases, in the order in which they were leased.
        revoked: Leases that were requeued while the client was silent. The next Revoke names them.
        is_silent: The client sent no message for the last `heartbeat_timeout` seconds.
        phase: Whether the client is idle, waits for a pass, or reads one.
        iteration: Number of the client's current iteration.
        entered_passes: Numbers of the passes that the client has entered.
        last_entry: (iteration number, pass number) when the client last entered a pass.
        is_late: The client joined in the middle of a pass, and has not started an iteration yet.
        num_consumed: Number of batches that the client has consumed.
    """

    session: SessionStarted
    partition: Partition
    hwm: int
    last_heard: float = 0.0
    request_number: int = 0
    leases: list[Key] = field(default_factory=list)
    revoked: list[Key] = field(default_factory=list)
    is_silent: bool = False
    phase: Phase = field(default_factory=Idle)
    iteration: int = 0
    entered_passes: set[int] = field(default_factory=set)
    last_entry: tuple[int, int] = (0, -1)
    is_late: bool = False
    num_consumed: int = 0

    @property
    def token(self) -> str:
        """Identifies the client over reconnects. The client chooses the token itself."""
        return self.session.token

    @property
    def pass_number(self) -> int | None:
        """Number of the pass that the client reads, or None."""
        return self.phase.pass_number if isinstance(self.phase, Reading) else None

    @property
    def wanted(self) -> tuple[int, int] | None:
        """(epoch, position) of the pass that the client waits for, or None."""
        phase = self.phase
        return (phase.epoch, phase.position) if isinstance(phase, Waiting) else None

    @property
    def credits(self) -> int:
        """Number of batches that the client may lease now; 0 if silent or outside a pass."""
        return 0 if self.is_silent or self.pass_number is None else self.hwm - len(self.leases)

    def reconnect(self) -> None:
        """Set the phase for a reconnect: Reconnecting if the client read a pass, else Idle."""
        has_read = isinstance(self.phase, Reading | Reconnecting)
        self.phase = Reconnecting() if has_read else Idle()

    def enter(self, pass_number: int) -> None:
        """Start to read a pass in the current iteration."""
        self.phase = Reading(pass_number)
        self.entered_passes.add(pass_number)
        self.last_entry = self.iteration, pass_number
