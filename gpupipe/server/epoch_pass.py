"""A run: one pass over an epoch, or over the rest of one, and how far each of its steps is."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass
class EpochPass:
    """Every step is to be made (`fresh` and those behind it, and `back`), being made, out with a
    client, or done.

    number: of all runs of a server. position: the samples of the epoch that it leaves out.
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
        return len(self.done) == self.steps

    @property
    def left(self) -> bool:
        """Whether a step is left to be made."""
        return bool(self.back) or self.fresh < self.steps

    @property
    def given(self) -> int:
        """Steps that were taken to be made so far, without those that came back."""
        return self.fresh - len(self.back)

    def is_all_with(self, token: str) -> bool:
        """Whether all that is not done is out with one client."""
        return (
            not self.left
            and not self.making
            and all(holder == token for holder in self.out.values())
        )

    def is_at(self, epoch: int, position: int) -> bool:
        return (self.epoch, self.position) == (epoch, position)

    def same_as(self, other: EpochPass) -> bool:
        return self.is_at(other.epoch, other.position)

    def take(self) -> int | None:
        """The next step to make: what came back first."""
        if self.back:
            step = heapq.heappop(self.back)
        elif self.fresh < self.steps:
            step, self.fresh = self.fresh, self.fresh + 1
        else:
            return None
        self.making.add(step)
        return step

    def lease(self, step: int, token: str) -> None:
        """A step that was made is a client's now."""
        self.making.remove(step)
        self.out[step] = token

    def take_again(self, step: int, token: str) -> bool:
        """A client still holds a step that went back: it is its own again, unless it is being made
        again or another has got it.
        """
        if step not in self.back:
            return False
        self._unback(step)
        self.out[step] = token
        return True

    def give_back(self, step: int) -> None:
        """A step comes back from a client."""
        if self.out.pop(step, None) is not None:
            heapq.heappush(self.back, step)

    def put_back(self, step: int) -> None:
        """A step that was being made comes to nothing."""
        if step in self.making:
            self.making.remove(step)
            heapq.heappush(self.back, step)

    def finish(self, step: int) -> bool:
        """A step is consumed. False where it was so already, or was never made."""
        if step in self.done or not 0 <= step < self.fresh:
            return False
        if step in self.back:
            self._unback(step)
        self.making.discard(step)
        self.out.pop(step, None)
        self.done.add(step)
        return True

    def _unback(self, step: int) -> None:
        self.back.remove(step)
        heapq.heapify(self.back)

    def resume(self) -> None:
        """Behind a restart: all that is neither out nor done is to be made."""
        self.making = set()
        self.fresh = self.steps
        self.back = [
            step for step in range(self.steps) if step not in self.done and step not in self.out
        ]


@dataclass
class Partition:
    """A sequence of runs, of the plans of one rank.

    anew: the number of the first run after the lane was begun anew last; those before it are
    forgotten.
    """

    name: str
    rank: int
    run: EpochPass | None = None
    anew: int = 0

    def next_place(self, first: tuple[int, int]) -> tuple[int, int]:
        """(epoch, position) where one who joins begins."""
        if self.run is None:
            return first
        return (self.run.epoch + 1, 0) if self.run.over else (self.run.epoch, self.run.position)
