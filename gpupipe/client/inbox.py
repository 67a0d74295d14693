"""What a client holds of one server: the client's half of the protocol, without sockets, threads or
clocks. See ledger.py for the rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpupipe.protocol.messages import WINDOW, Key

T = TypeVar("T")


@dataclass
class Inbox(Generic[T]):
    """Batches in the order in which they were leased: unconfirmed ones, those that the consumer
    has, and those that wait for it.
    """

    unconfirmed: list[Key] = field(default_factory=list)
    taken: list[Key] = field(default_factory=list)
    waiting: deque[tuple[Key, T]] = field(default_factory=deque)

    def arrive(self, key: Key, batch: T) -> None:
        """A batch is here."""
        if key not in self.keys:
            self.waiting.append((key, batch))

    def take(self) -> tuple[Key, T] | None:
        """The next batch for the consumer, where it may have one: see rule 4."""
        if not self.waiting or len(self.unconfirmed) + len(self.taken) >= WINDOW:
            return None
        key, batch = self.waiting.popleft()
        self.taken.append(key)
        return key, batch

    def consume(self, key: Key) -> bool:
        """The consumer is done with a batch. False where it has not got it."""
        if key not in self.taken:
            return False
        self.taken.remove(key)
        self.unconfirmed.append(key)
        return True

    def confirm(self, keys: Iterable[Key]) -> None:
        """The server has noted these down."""
        gone = set(keys)
        self.unconfirmed = [key for key in self.unconfirmed if key not in gone]

    def revoke(self, keys: Iterable[Key]) -> None:
        """These are others' now."""
        gone = set(keys)
        self.waiting = deque(pair for pair in self.waiting if pair[0] not in gone)

    def keep_only(self, yours: Iterable[Key]) -> None:
        """What waits and is not among these is others' now. What the consumer has it keeps."""
        kept = set(yours)
        self.revoke([key for key, _ in self.waiting if key not in kept])

    def drop(self) -> None:
        """The iteration ended: what the consumer has not got is given up."""
        self.taken.clear()
        self.waiting.clear()

    @property
    def keys(self) -> list[Key]:
        """What is held and not consumed, in order."""
        return [*self.taken, *(key for key, _ in self.waiting)]
