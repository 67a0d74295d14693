"""One pass over an epoch, or over the rest of one, and the state of each of its steps."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass
class EpochPass:
    """A pass over an epoch. Each of its steps is queued, being made, leased or done.

        queued (fresh, back) ──take──> making ──lease──> out ──finish──> done
                  ^                       │               │
                  └───────put_back────────┴───give_back───┘

    Attributes:
        number: Counts all passes of a server, from 0.
        epoch: The epoch that is read.
        position: Number of samples at the start of the epoch that this pass leaves out.
        steps: Number of steps.
        fresh: This step and all later ones were never taken.
        back: Heap of requeued steps.
        making: Steps that are being made.
        out: Leased steps, and the token of the client that leases each.
        done: Steps that are consumed, or had no sample that could be read.

    """

    number: int
    epoch: int
    position: int
    steps: int
    fresh: int = 0
    back: list[int] = field(default_factory=list)
    making: set[int] = field(default_factory=set)
    out: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    @property
    def over(self) -> bool:
        """Whether all steps are done."""
        return len(self.done) == self.steps

    @property
    def left(self) -> bool:
        """Whether any step is queued."""
        return bool(self.back) or self.fresh < self.steps

    @property
    def given(self) -> int:
        """Number of steps taken so far, without those that were requeued."""
        return self.fresh - len(self.back)

    def is_all_with(self, token: str) -> bool:
        """Return whether one client leases all steps that are not done."""
        return (
            not self.left
            and not self.making
            and all(holder == token for holder in self.out.values())
        )

    def is_at(self, epoch: int, position: int) -> bool:
        """Return whether the pass starts at this epoch and position."""
        return (self.epoch, self.position) == (epoch, position)

    def same_as(self, other: EpochPass) -> bool:
        """Return whether both passes start at the same epoch and position."""
        return self.is_at(other.epoch, other.position)

    def take(self) -> int | None:
        """Take the next step to make, requeued steps first; None if none is queued."""
        if self.back:
            step = heapq.heappop(self.back)
        elif self.fresh < self.steps:
            step, self.fresh = self.fresh, self.fresh + 1
        else:
            return None
        self.making.add(step)
        return step

    def lease(self, step: int, token: str) -> None:
        """Lease a step that was made to the client `token`."""
        self.making.remove(step)
        self.out[step] = token

    def take_again(self, step: int, token: str) -> bool:
        """Lease a requeued step again to a client that still holds its batch.

        False if the step is no longer queued: it is being made again, leased or done.
        """
        if step not in self.back:
            return False
        self._remove_requeued(step)
        self.out[step] = token
        return True

    def give_back(self, step: int) -> None:
        """Requeue a leased step. Does nothing if the step is not leased."""
        if self.out.pop(step, None) is not None:
            heapq.heappush(self.back, step)

    def put_back(self, step: int) -> None:
        """Requeue a step whose making failed. Does nothing if the step is not being made."""
        if step in self.making:
            self.making.remove(step)
            heapq.heappush(self.back, step)

    def finish(self, step: int) -> bool:
        """Mark a step as done. False if it was already, or was never taken."""
        if step in self.done or not 0 <= step < self.fresh:
            return False
        if step in self.back:
            self._remove_requeued(step)
        self.making.discard(step)
        self.out.pop(step, None)
        self.done.add(step)
        return True

    def _remove_requeued(self, step: int) -> None:
        self.back.remove(step)
        heapq.heapify(self.back)

    def resume(self) -> None:
        """Requeue all steps that are neither leased nor done, after a restart of the server."""
        self.making = set()
        self.fresh = self.steps
        self.back = [
            step for step in range(self.steps) if step not in self.done and step not in self.out
        ]


@dataclass
class Partition:
    """A sequence of passes over the plans of one rank.

    Attributes:
        name: The rank, or the client's token with `broadcast`.
        rank: Rank among the partitions of this server.
        run: The current pass, or None.
        anew: Number of the first pass since the partition last started from the beginning. Earlier
            passes are forgotten.

    """

    name: str
    rank: int
    run: EpochPass | None = None
    anew: int = 0

    def next_place(self, first: tuple[int, int]) -> tuple[int, int]:
        """Return (epoch, position) where a client begins; `first` if there is no pass."""
        if self.run is None:
            return first
        return (self.run.epoch + 1, 0) if self.run.over else (self.run.epoch, self.run.position)
