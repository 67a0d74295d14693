"""Ways to divide an epoch into batches over ranks, and the plans of all ranks."""

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import ALL_ONCE, Selection

PARTIAL, DROP, PAD = "partial", "drop", "pad"


@dataclass(frozen=True)
class Case:
    count: int
    batch_size: int
    world_size: int
    last_batch: str
    shuffle: bool = True
    seed: int = 5
    selection: Selection = ALL_ONCE

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
    def total(self) -> int:
        """The samples of an epoch."""
        rows = self.selection.rows
        return self.selection.epoch_size_of(self.count if rows is None else len(rows))

    @property
    def possible(self) -> bool:
        if self.last_batch == DROP:
            return self.total >= self.everyone
        if self.last_batch == PAD:
            return self.total > 0
        return self.total >= self.world_size and (
            self.batch_size > 1 or self.total % self.world_size == 0
        )


def cases(*last_batch: str) -> st.SearchStrategy[Case]:
    of = st.sampled_from(last_batch or (PARTIAL, DROP, PAD))
    return st.builds(
        Case, st.integers(1, 90), st.integers(1, 9), st.integers(1, 9), of, st.booleans()
    ).filter(lambda c: c.possible)


@st.composite
def selections(draw: st.DrawFn, count: int) -> Selection:
    """Every way to choose from samples, with weights of 0 among others."""
    repeats = draw(st.integers(1, 4))
    epoch_size: Any = draw(st.sampled_from([None, "all"]) | st.integers(1, 3 * count))
    rows = draw(st.none() | st.sets(st.integers(0, count - 1), min_size=1))
    some = None if rows is None else np.array(sorted(rows), np.int64)
    weights = None
    if draw(st.booleans()):
        weights = np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 5.0]), min_size=count)))[:count]
        weights[0 if some is None else some[0]] = 1.0
    return Selection(repeats, epoch_size, some, weights, {"repeats": repeats})


@st.composite
def chosen_cases(draw: st.DrawFn, *last_batch: str) -> Case:
    """Cases whose epochs are not every sample once."""
    case = draw(cases(*last_batch))
    selection = draw(selections(case.count))
    chosen = replace(case, selection=selection)
    assume(chosen.possible)
    return chosen


def in_order(step: list[Plan], case: Case, name: str = "ids") -> list[int]:
    """What all ranks get in a step, in the order of the epoch."""
    parts = [getattr(plan, name).tolist() for plan in step]
    if case.selection.repeats == 1:
        return [n for part in parts for n in part]
    return [n for turn in zip_longest(*parts) for n in turn if n is not None]


def steps_of(samplers: list[Sampler]) -> list[list[Plan]]:
    """The plans of every rank, step by step."""
    epochs = [list(s.begin()) for s in samplers]
    assert len({len(e) for e in epochs}) == 1, "equal steps on all ranks"
    return [list(step) for step in zip(*epochs, strict=True)]


def delivered(steps: list[list[Plan]]) -> list[int]:
    """The ids in the order of the steps, and in a step of the ranks."""
    return [int(i) for step in steps for plan in step for i in plan.ids]
