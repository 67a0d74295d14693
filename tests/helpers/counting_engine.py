"""An engine that only counts, for tests of a loader's life cycle."""

from collections.abc import Generator, Iterator

import torch

from gpupipe.engines.base import Batch, BatchStream
from gpupipe.sampling.sampler import Plan

EPOCH = [[0, 1], [2, 3], [4, 5]]
"""The ids of six samples in batches of two, in the order of the index."""


class Counting(BatchStream):
    """Delivers the ids, and remembers its runs and what was consumed.

    Args:
        skipped: Plans (epoch, end) whose samples are all skipped.
        most: How many batches a run delivers at most.
    """

    name = "counting"
    settings = frozenset()

    def __init__(self, skipped: frozenset[tuple[int, int]] = frozenset(), most: int = 99) -> None:
        self._skipped, self._most = skipped, most
        self.runs = self.cancelled = 0
        self.consumed: list[tuple[int, int]] = []

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        self.runs += 1
        try:
            for number, plan in enumerate(plans):
                if number == self._most:
                    return
                if (plan.epoch, plan.end) not in self._skipped:
                    yield plan, {"id": torch.from_numpy(plan.ids)}
        except GeneratorExit:
            self.cancelled += 1
            raise

    def mark_consumed(self, plan: Plan) -> None:
        self.consumed.append((plan.epoch, plan.end))

    def close(self) -> None:
        pass


def ids(plan: Plan, batch: Batch) -> list[int]:
    return batch["id"].tolist()  # type: ignore[no-any-return]
