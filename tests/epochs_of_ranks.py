"""Ways to divide an epoch into batches over ranks, and the plans of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gpupipe.sampling.sampler import Plan, Sampler

PARTIAL, DROP, PAD = "partial", "drop", "pad"


@dataclass(frozen=True)
class Case:
    count: int
    batch_size: int
    world_size: int
    last_batch: str
    shuffle: bool = True
    seed: int = 5

    def ranks(self, **changes: Any) -> list[Sampler]:
        options = {**vars(self), **changes}
        count, batch_size = options.pop("count"), options.pop("batch_size")
        return [
            Sampler(count, batch_size, rank=rank, **options)
            for rank in range(options["world_size"])
        ]

    @property
    def everyone(self) -> int:
        return self.batch_size * self.world_size

    @property
    def possible(self) -> bool:
        if self.last_batch == DROP:
            return self.count >= self.everyone
        if self.last_batch == PAD:
            return self.count > 0
        return self.count >= self.world_size and (
            self.batch_size > 1 or self.count % self.world_size == 0
        )


def cases(*last_batch: str) -> st.SearchStrategy[Case]:
    of = st.sampled_from(last_batch or (PARTIAL, DROP, PAD))
    return st.builds(
        Case, st.integers(1, 90), st.integers(1, 9), st.integers(1, 9), of, st.booleans()
    ).filter(lambda c: c.possible)


def steps_of(samplers: list[Sampler]) -> list[list[Plan]]:
    """The plans of every rank, step by step."""
    epochs = [list(s.begin()) for s in samplers]
    assert len({len(e) for e in epochs}) == 1, "equal steps on all ranks"
    return [list(step) for step in zip(*epochs, strict=True)]


def delivered(steps: list[list[Plan]]) -> list[int]:
    """The ids in the order of the steps, and in a step of the ranks."""
    return [int(i) for step in steps for plan in step for i in plan.ids]
