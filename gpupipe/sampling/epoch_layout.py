"""Divides the samples of an epoch into batches, over all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import counted


@dataclass(frozen=True)
class EpochLayout:
    """The division of samples into batches, over all ranks.

    All ranks take the same number of steps, and no batch is empty. All batches are full but those
    of the last step, and `last_batch` says what happens to the rest of the samples:

    - "partial" divides them as evenly as possible. A rank that would get none takes one sample from
      its own batch of the step before, which is then one short.
    - "drop" leaves them out.
    - "pad" fills the batches up with samples from the start of the epoch.

    Attributes:
        total: The samples to divide.
        batch_size: Samples per batch and rank.
        world_size: The number of ranks.
        last_batch: "partial", "drop" or "pad".
        is_dealt: Whether the ranks take the samples of a step in turns, one each; else each takes
            a block.
    """

    total: int
    batch_size: int
    world_size: int
    last_batch: str
    is_dealt: bool = False

    @property
    def num_steps(self) -> int:
        everyone = self.batch_size * self.world_size
        return self.total // everyone if self.last_batch == "drop" else -(-self.total // everyone)

    def batch_sizes(self, step: int) -> NDArray[np.int64]:
        """Return the batch size of every rank at a step, int64 (world_size,)."""
        full = np.full(self.world_size, self.batch_size, np.int64)
        if self.last_batch != "partial" or step < self.num_steps - 2:
            return full
        shares = self._shares() - (self.num_steps - 1) * self.batch_size
        short = shares < 1
        return np.maximum(shares, 1) if step == self.num_steps - 1 else full - short

    def start(self, step: int) -> int:
        """Return how many samples all ranks together have had before a step."""
        return step * self.batch_size * self.world_size - (
            self._count_borrowed() if step == self.num_steps - 1 and step > 0 else 0
        )

    def end(self, step: int) -> int:
        """Return how many samples all ranks together have had after a step."""
        return self.start(step) + int(self.batch_sizes(step).sum())

    def positions(self, step: int, rank: int) -> NDArray[np.int64]:
        """Return which samples a rank gets at a step, int64 (B,); with "pad" also beyond the last.

        No rank gets more than the rank before it, so taking turns leaves no gap.
        """
        sizes = self.batch_sizes(step)
        mine = np.arange(sizes[rank])
        if self.is_dealt:
            return self.start(step) + rank + mine * self.world_size
        return self.start(step) + int(sizes[:rank].sum()) + mine

    def _shares(self) -> NDArray[np.int64]:
        """Return the number of samples of every rank with last_batch "partial"."""
        each, rest = divmod(self.total, self.world_size)
        return each + (np.arange(self.world_size) < rest)

    def _count_borrowed(self) -> int:
        """Return how many samples the last step takes from the step before it.

        With last_batch "partial", it takes one for each rank that would have none left.
        """
        if self.last_batch != "partial":
            return 0
        return int((self._shares() - (self.num_steps - 1) * self.batch_size < 1).sum())

    def explain_problem(self) -> str:
        """Return why the samples cannot be divided this way, or ""."""
        samples, ranks = counted(self.total, "sample"), counted(self.world_size, "rank")
        if self.total < 1:
            return "there are no samples"
        if self.last_batch == "drop" and self.total < self.batch_size * self.world_size:
            return (
                f"{samples} cannot give {ranks} a full batch of {self.batch_size} each: make "
                "batch_size smaller, or set last_batch: partial"
            )
        if self.last_batch == "partial" and self.total < self.world_size:
            return (
                f"{samples} cannot give each of {ranks} one: use fewer ranks, or set "
                "last_batch: pad"
            )
        if self.last_batch == "partial" and self.batch_size == 1 and self.total % self.world_size:
            return (
                f"{samples} one at a time cannot give {ranks} equal steps: set batch_size above "
                "1, or last_batch: drop or pad"
            )
        return ""
