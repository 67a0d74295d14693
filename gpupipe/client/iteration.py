"""What a client reads: its iteration, which is its place in a pass of the server, and its inbox,
the batches that it holds.

Both are plain state, without sockets, threads or clocks. The inbox is the client's half of the
protocol whose rules are at the head of server/leases.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpupipe.protocol import messages
from gpupipe.protocol.messages import MAX_UNACKED, Key


@dataclass(frozen=True)
class ReceivedBatch:
    """A batch that is ready for the consumer.

    Attributes:
        key: Identifies the batch.
        epoch: Its epoch.
        end: Number of samples of the epoch that all ranks have had after it.
        is_last: It is the last batch of the pass that this client gets.
        batch: What the iteration's `finish` returned.
    """

    key: Key
    epoch: int
    end: int
    is_last: bool
    batch: Any


@dataclass
class Iteration:
    """The state of what a consumer reads, without sockets, threads or clocks.

        stopped ──start──> starting ──enter──> reading ──end_pass──> starting, at the end of a pass
           ^                  └──────────────stop──────────────┘
           └────────────────────────────────────┘

    At the end of a pass the next one starts at once, so that its batches arrive before they are
    needed. The consumer continues with it, or starts elsewhere.

    Attributes:
        number: Counts the iterations. The server repeats it, so that messages about earlier
            iterations can be ignored.
        position: (epoch, number of its samples that were read), or None if stopped.
        pass_number: The pass that is read; -1 until the server has named one.
        is_at_end: A pass has ended, and the consumer has not continued with the next one yet.
        is_explicit: The user named the position, so the server must not choose another one.
        is_shared: Other clients read this pass, or have read it. So `position` does not say which
            earlier samples were consumed.
    """

    number: int = 0
    position: tuple[int, int] | None = None
    pass_number: int = -1
    is_at_end: bool = False
    is_explicit: bool = False
    is_shared: bool = False

    def start(
        self, epoch: int, position: int, is_explicit: bool = False
    ) -> messages.StartIteration:
        """Start an iteration, and return the message about it."""
        self.number += 1
        self.position, self.pass_number = (epoch, position), -1
        self.is_at_end, self.is_explicit, self.is_shared = False, is_explicit, False
        return messages.StartIteration(self.number, epoch, position, -1, is_explicit)

    def continue_at(self, epoch: int, position: int) -> bool:
        """Continue with the pass that started at the end of the last one.

        False if there is no such pass, or if it starts at another position.
        """
        is_started = self.is_at_end and self.position == (epoch, position)
        self.is_at_end = False
        return is_started

    def enter(self, message: messages.IterationStarted) -> None:
        """Enter a pass, or learn that others entered it. Ignores other iterations' messages."""
        if message.iteration == self.number and self.position is not None:
            was_shared = self.is_shared and self.pass_number == message.pass_number
            self.is_shared = was_shared or message.is_shared
            self.pass_number, self.is_explicit = message.pass_number, False

    def end_pass(self, pass_number: int) -> messages.StartIteration | None:
        """Start the next epoch if the current pass ended, and return the message about it."""
        if pass_number != self.pass_number or self.position is None:
            return None
        message = self.start(self.position[0] + 1, 0)
        self.is_at_end = True
        return message

    def stop(self) -> bool:
        """Stop. False if it was stopped already."""
        if self.position is None:
            return False
        self.position, self.pass_number, self.is_at_end = None, -1, False
        self.is_shared = False
        return True

    def resume(self, is_same_history: bool) -> messages.StartIteration | None:
        """Return the message that continues the iteration after a reconnect; None if stopped."""
        if self.position is None:
            return None
        pass_number = self.pass_number if is_same_history else -1
        return messages.StartIteration(self.number, *self.position, pass_number, self.is_explicit)


@dataclass
class Inbox:
    """Batches in the order in which they were leased.

    Attributes:
        unconfirmed: Batches that are acknowledged, but not confirmed by the server yet.
        taken: Batches that the consumer has and has not acknowledged.
        waiting: Batches that wait for the consumer.
    """

    unconfirmed: list[Key] = field(default_factory=list)
    taken: list[Key] = field(default_factory=list)
    waiting: deque[ReceivedBatch] = field(default_factory=deque)

    @property
    def keys(self) -> list[Key]:
        """Batches that are held and not consumed, in order."""
        return [*self.taken, *(batch.key for batch in self.waiting)]

    def add(self, batch: ReceivedBatch) -> None:
        """Queue a batch for the consumer. Does nothing if the consumer has it, or has had it."""
        if batch.key not in self.keys and batch.key not in self.unconfirmed:
            self.waiting.append(batch)

    @property
    def can_take(self) -> bool:
        """Whether a batch waits, and the window is not full (rule 4)."""
        return bool(self.waiting) and len(self.unconfirmed) + len(self.taken) < MAX_UNACKED

    def take(self) -> ReceivedBatch | None:
        """Return the next batch; None if the consumer can take none."""
        if not self.can_take:
            return None
        batch = self.waiting.popleft()
        self.taken.append(batch.key)
        return batch

    def consume(self, key: Key) -> bool:
        """Mark a batch as consumed, to be acknowledged. False if the consumer does not have it."""
        if key not in self.taken:
            return False
        self.taken.remove(key)
        self.unconfirmed.append(key)
        return True

    def confirm(self, keys: Sequence[Key]) -> None:
        """Forget acknowledged batches that the server has confirmed."""
        self.unconfirmed = [key for key in self.unconfirmed if key not in keys]

    def revoke(self, keys: Sequence[Key]) -> None:
        """Drop queued batches that the server has requeued."""
        self.waiting = deque(batch for batch in self.waiting if batch.key not in keys)

    def keep_only(self, leased: Sequence[Key]) -> None:
        """Drop queued batches that are not in `leased`; keep those that the consumer holds."""
        self.waiting = deque(batch for batch in self.waiting if batch.key in leased)

    def drop(self) -> None:
        """Drop all batches but the unconfirmed ones, at the end of an iteration."""
        self.taken.clear()
        self.waiting.clear()
