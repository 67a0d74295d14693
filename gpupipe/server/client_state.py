"""A client as the server knows it, and the rules by which batches are dealt out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key
from gpupipe.server.epoch_pass import Partition


@dataclass
class Client:
    """A client and what it has.

    wants: (epoch, position) where it waits for a run; run: the one that it is in.
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
    """The iteration that entered a run last, and that run."""
    pending: bool = False
    """Whether it was in a run when its connection, or the server, was lost, and has not said yet
    that it goes on.
    """
    late: bool = False
    """Whether it was new in the middle of a run, and has not begun an iteration yet."""
    between: bool = False
    """Whether its run has just ended, and it has not said yet what it does next."""
    consumed: int = 0

    @property
    def credits(self) -> int:
        """How many more batches it may have now."""
        return 0 if self.quiet or self.run is None else self.hwm - len(self.leases)

    def leave_run(self) -> None:
        self.run = self.wants = None
        self.between = False


@dataclass(frozen=True)
class Rules:
    """How batches are dealt out. count: the ranks of `share` with equal steps, or None; silent,
    lost: seconds; resume: whether a lane keeps its place when the last of its clients is gone."""

    mode: Literal["share", "broadcast"] = "share"
    count: int | None = None
    hwm: int = 10
    silent: float = 10.0
    lost: float = 60.0
    most_clients: int = 64
    resume: bool = False


class Refusal(Exception):
    """A client cannot have what it asks for; the text says why. again: whether later it might."""

    def __init__(self, why: str, again: bool = False) -> None:
        self.again = again
        super().__init__(why)
