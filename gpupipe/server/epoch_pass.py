"""One pass over an epoch, or over the rest of one, and the state of each of its steps."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


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

    Queued are the steps in `requeued`, then those from `next_new` on. They are leased in order: a
    step whose batch is ready waits for earlier steps that are queued or being made.

    Attributes:
        number: Counts all passes of a server, from 0.
        epoch: The epoch that is read.
        position: Number of samples at the start of the epoch that this pass leaves out.
        steps: Number of steps.
        next_new: This step and all later ones were never taken.
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
        """Whether all steps are done."""
        return len(self.done) == self.steps

    @property
    def has_queued(self) -> bool:
        """Whether any step is queued."""
        return bool(self.requeued) or self.next_new < self.steps

    @property
    def num_taken(self) -> int:
        """Number of steps taken so far, without those that were requeued."""
        return self.next_new - len(self.requeued)

    @property
    def num_making_in_order(self) -> int:
        """Number of steps that are being made, without those that wait for a queued one."""
        queued = self._first_queued
        return sum(step < queued for step in self.making)

    @property
    def _first_queued(self) -> int:
        return self.requeued[0] if self.requeued else self.next_new

    def is_first(self, step: int) -> bool:
        """Return whether no step before this one is queued or being made."""
        return step <= self._first_queued and step <= min(self.making, default=step)

    def is_all_leased_to(self, token: str) -> bool:
        """Return whether one client leases all steps that are not done."""
        return (
            not self.has_queued
            and not self.making
            and all(holder == token for holder in self.leased.values())
        )

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
        """Lease a step that was made, or a requeued one whose batch the client `token` holds."""
        self._unqueue(step)
        self.leased[step] = token

    def requeue_leased(self, step: int) -> None:
        """Requeue a leased step. Does nothing if the step is not leased."""
        if self.leased.pop(step, None) is not None:
            heapq.heappush(self.requeued, step)

    def requeue_unmade(self, step: int) -> None:
        """Requeue a step whose making failed. Does nothing if the step is not being made."""
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
        """Make a step neither requeued nor being made."""
        self.making.discard(step)
        if step in self.requeued:
            self.requeued.remove(step)
            heapq.heapify(self.requeued)

    def requeue_unfinished(self) -> None:
        """Requeue all steps that are neither leased nor done, after a restart of the server."""
        self.making = set()
        self.next_new = self.steps
        self.requeued = [
            step for step in range(self.steps) if step not in self.done and step not in self.leased
        ]


@dataclass
class Partition:
    """A sequence of passes over the plans of one rank.

    Attributes:
        name: The rank, or the client's token with `broadcast`.
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
        """Return (epoch, position) where a client begins; `first` if there is no pass."""
        if self.current is None:
            return first
        return (self.current.epoch + 1, 0) if self.current.is_over else self.current.start

    def progress(self) -> dict[str, int]:
        """Return the position and progress of the current pass; {} if there is none."""
        current = self.current
        if current is None:
            return {}
        return {
            "rank": self.rank,
            "epoch": current.epoch,
            "position": current.position,
            "done": len(current.done),
            "steps": current.steps,
        }
