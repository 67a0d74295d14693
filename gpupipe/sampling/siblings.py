"""Siblings: successive plans of an epoch, for which draws are computed at once.

The work on a batch drops the code that draws from the processor's caches. So the draws of one batch
alone take several times as long as its part of the draws of many.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")


class Siblings:
    """The samples of successive plans, and what was computed for all of them at once.

    Args:
        batches: The ids of each plan, int64 (B,).
        repeats: The repeats of each plan, int64 (B,); None if no sample has any.

    Attributes:
        batches: The argument.
        ids: The ids of all plans, one plan after the other, int64 (N,).
        repeats: The repeats of all plans, int64 (N,); None if no sample has any.
        bounds: Where the samples of each plan begin in `ids`, and where the last ones end.
    """

    def __init__(
        self,
        batches: Sequence[NDArray[np.int64]],
        repeats: Sequence[NDArray[np.int64]] | None = None,
    ) -> None:
        self.batches, self.ids = batches, np.concatenate(batches)
        self.repeats = None if repeats is None else np.concatenate(repeats)
        self.bounds = [0, *np.cumsum([len(ids) for ids in batches]).tolist()]
        self._repeats = repeats
        self._results: dict[tuple[int, Any, int], tuple[object, list[Any]]] = {}

    def take(
        self,
        number: int,
        owner: object,
        key: Any,
        compute: Callable[["Siblings"], Sequence[_T]],
        max_rows: int | None = None,
    ) -> _T | None:
        """Return a plan's part of what is computed for all plans at once.

        Each part is returned once, so the caller may change it.

        Args:
            number: The position of the plan.
            owner: The object for which it is computed.
            key: Tells apart what is computed for one owner.
            compute: Computes a list of what each plan gets. It is called once. If it raises, no
                plan gets anything: the caller computes alone, and finds the plan at fault.
            max_rows: The maximum number of samples of several plans for which it is called at once;
                None for all plans.

        Returns:
            The plan's part; None if there is none, or if it was taken before.
        """
        count = len(self.batches)
        if max_rows is not None:
            count = max(1, max_rows // len(self.batches[0]))
        first = number - number % count
        name = id(owner), key, first
        if name not in self._results:  # two threads may compute it, with equal results
            part = self._part(slice(first, first + count))
            try:
                results: list[Any] = list(compute(part))
            except Exception:
                results = [None] * len(part.batches)
            self._results[name] = owner, results  # while it has the owner, no other has its id
        results = self._results[name][1]
        result: _T | None = results[number - first]
        results[number - first] = None
        return result

    def _part(self, plans: slice) -> "Siblings":
        batches = self.batches[plans]
        if len(batches) == len(self.batches):
            return self
        return Siblings(batches, None if self._repeats is None else self._repeats[plans])

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the part of each plan, (n * B, ...), in an array (n * N, ...).

        The array has n parts, such as one for each of n views. Each has the rows of all plans.
        """
        spans, count = pairwise(self.bounds), len(self.ids)
        if len(values) == count:
            return [values[begin:end] for begin, end in spans]
        parts = values.reshape(-1, count, *values.shape[1:])
        shape = -1, *values.shape[1:]
        return [np.ascontiguousarray(parts[:, a:b].reshape(shape)) for a, b in spans]
