"""The session of a client, as the server sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from gpupipe.protocol.messages import Key
from gpupipe.server.epoch_pass import Partition


class SessionStarted(Struct, array_like=True, tag="client", frozen=True):
    """A client has a session. The fields are those of messages.OpenSession, and its partition."""

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
    """It read a pass when its connection or the server was lost.

    It has not said yet whether it continues.
    """


@dataclass(frozen=True)
class Waiting:
    """It waits for a pass to start at this epoch and position."""

    epoch: int
    position: int


@dataclass(frozen=True)
class Reading:
    """It reads the pass with this number."""

    pass_number: int


@dataclass(frozen=True)
class BetweenPasses:
    """Its pass has just ended, and it has not said yet what it does next."""


Phase = Idle | Reconnecting | Waiting | Reading | BetweenPasses
"""What a client does. sessions.py and pass_schedule.py move it from phase to phase:

    Idle ──StartIteration──> Waiting ──pass starts──> Reading ──pass ends──> BetweenPasses
     ^  └──────────────StartIteration──────────────────^ │ ^                     │
     └──────────────────EndIteration─────────────────────┤ └───StartIteration────┘
                                                         └─OpenSession──> Reconnecting
"""


@dataclass
class Client:
    """The session of a client.

    Attributes:
        session: What the write-ahead log keeps of it: token, name and process.
        partition: Its partition.
        hwm: Number of batches that it may hold.
        last_heard: Time of its last message, in seconds of the server's monotonic clock.
        request_number: `number` of its last OpenSession.
        leases: Batches that it leases, in the order in which they were leased.
        revoked: Leases that were requeued while it was silent, and of which it does not know yet.
        is_silent: It missed the heartbeat timeout.
        phase: What it does.
        iteration: Number of its current iteration.
        entered_passes: Numbers of the passes that it has entered.
        last_entry: (iteration, pass) of the last time it entered a pass.
        is_late: It is new, came in the middle of a pass, and has not started an iteration yet.
        num_consumed: Number of batches that it has consumed.
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
        """Identifies the client over reconnects; it chooses the token itself."""
        return self.session.token

    @property
    def pass_number(self) -> int | None:
        """Number of the pass that it reads, or None."""
        return self.phase.pass_number if isinstance(self.phase, Reading) else None

    @property
    def wanted(self) -> tuple[int, int] | None:
        """(epoch, position) where it waits for a pass to start, or None."""
        phase = self.phase
        return (phase.epoch, phase.position) if isinstance(phase, Waiting) else None

    @property
    def credits(self) -> int:
        """Number of batches that it may lease now; 0 if it is silent or reads no pass."""
        return 0 if self.is_silent or self.pass_number is None else self.hwm - len(self.leases)

    def reconnect(self) -> None:
        """Leave the pass that it reads, but remember that it read one."""
        has_read = isinstance(self.phase, Reading | Reconnecting)
        self.phase = Reconnecting() if has_read else Idle()

    def enter(self, pass_number: int) -> None:
        """Read a pass in the current iteration."""
        self.phase = Reading(pass_number)
        self.entered_passes.add(pass_number)
        self.last_entry = self.iteration, pass_number


class RequestRefused(Exception):
    """The server refuses a request of a client; the text says why.

    Attributes:
        is_temporary: The same request may succeed later.
    """

    def __init__(self, reason: str, is_temporary: bool = False) -> None:
        self.is_temporary = is_temporary
        super().__init__(reason)
