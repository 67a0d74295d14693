"""The session of a client, as the server sees it, and the rules for leasing batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key
from gpupipe.server.epoch_pass import Partition


@dataclass
class Client:
    """The session of a client.

    Attributes:
        token: Identifies the client over reconnects; it chooses the token itself.
        hello: Its last Hello.
        lane: Its partition.
        hwm: Number of batches that it may hold.
        heard: Time of its last message, in seconds of the server's monotonic clock.
        leases: Batches that it leases, in the order in which they were leased.
        revoked: Leases that were requeued while it was silent, and of which it does not know yet.
        quiet: It missed the heartbeat timeout.
        number: Its current iteration.
        wants: (epoch, position) where it waits for a pass to start, or None.
        run: Number of the pass that it reads, or None.
        begun: Numbers of the passes that it has entered.
        entered: (iteration, pass) of the last time it entered a pass.
        pending: It read a pass when its connection or the server was lost, and has not said yet
            that it continues.
        late: It is new, came in the middle of a pass, and has not started an iteration yet.
        between: Its pass has just ended, and it has not said yet what it does next.
        consumed: Number of batches that it has consumed.

    """

    token: str
    hello: messages.Hello
    lane: Partition
    hwm: int
    heard: float
    leases: list[Key] = field(default_factory=list)
    revoked: list[Key] = field(default_factory=list)
    quiet: bool = False
    number: int = 0
    wants: tuple[int, int] | None = None
    run: int | None = None
    begun: set[int] = field(default_factory=set)
    entered: tuple[int, int] = (0, -1)
    pending: bool = False
    late: bool = False
    between: bool = False
    consumed: int = 0

    @property
    def credits(self) -> int:
        """Number of batches that it may lease now; 0 if it is silent or reads no pass."""
        return 0 if self.quiet or self.run is None else self.hwm - len(self.leases)

    def leave_run(self) -> None:
        """Leave the current pass, and stop waiting for one."""
        self.run = self.wants = None
        self.between = False


@dataclass(frozen=True)
class Rules:
    """The rules for leasing batches; ServerOptions explains them.

    Attributes:
        mode: "share" or "broadcast".
        count: Number of ranks of `share` with equally many steps, or None.
        hwm: Number of batches that a client may hold.
        silent: Heartbeat timeout in seconds.
        lost: Session timeout in seconds.
        most_clients: Number of clients that may be connected at once.
        resume: A partition keeps its position after its last client has left.

    """

    mode: Literal["share", "broadcast"] = "share"
    count: int | None = None
    hwm: int = 10
    silent: float = 10.0
    lost: float = 60.0
    most_clients: int = 64
    resume: bool = False


class Refusal(Exception):
    """The server refuses a request of a client; the text says why.

    Attributes:
        again: The same request may succeed later.

    """

    def __init__(self, why: str, again: bool = False) -> None:
        self.again = again
        super().__init__(why)
