"""The batches that a client holds: the client's half of the protocol, without sockets, threads or
clocks. The head of server/leases.py holds the rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpupipe.protocol.messages import MAX_UNACKED, Key

T = TypeVar("T")


@dataclass
class Inbox(Generic[T]):
    """Batches in the order in which they were leased.

    Attributes:
        unconfirmed: Batches that are acknowledged, but not confirmed by the server yet.
        taken: Batches that the consumer has and has not acknowledged.
        waiting: Batches that wait for the consumer.
    """

    unconfirmed: list[Key] = field(default_factory=list)
    taken: list[Key] = field(default_factory=list)
    waiting: deque[tuple[Key, T]] = field(default_factory=deque)

    def arrive(self, key: Key, batch: T) -> None:
        """Queue a batch for the consumer. Does nothing if the consumer has it, or has had it."""
        if key not in self.keys and key not in self.unconfirmed:
            self.waiting.append((key, batch))

    def take(self) -> tuple[Key, T] | None:
        """Return the next batch; None if none waits or the window is full (rule 4)."""
        if not self.waiting or len(self.unconfirmed) + len(self.taken) >= MAX_UNACKED:
            return None
        key, batch = self.waiting.popleft()
        self.taken.append(key)
        return key, batch

    def consume(self, key: Key) -> bool:
        """Mark a batch as consumed, to be acknowledged. False if the consumer does not have it."""
        if key not in self.taken:
            return False
        self.taken.remove(key)
        self.unconfirmed.append(key)
        return True

    def confirm(self, keys: Iterable[Key]) -> None:
        """Forget acknowledged batches that the server has confirmed."""
        confirmed = set(keys)
        self.unconfirmed = [key for key in self.unconfirmed if key not in confirmed]

    def revoke(self, keys: Iterable[Key]) -> None:
        """Drop queued batches that the server has requeued."""
        revoked = set(keys)
        self.waiting = deque(pair for pair in self.waiting if pair[0] not in revoked)

    def keep_only(self, yours: Iterable[Key]) -> None:
        """Drop queued batches that are not in `yours`; keep those that the consumer holds."""
        leased = set(yours)
        self.revoke([key for key, _ in self.waiting if key not in leased])

    def drop(self) -> None:
        """Drop all batches but the unconfirmed ones, at the end of an iteration."""
        self.taken.clear()
        self.waiting.clear()

    @property
    def keys(self) -> list[Key]:
        """Batches that are held and not consumed, in order."""
        return [*self.taken, *(key for key, _ in self.waiting)]
