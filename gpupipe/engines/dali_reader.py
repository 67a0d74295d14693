"""Files of plans, read ahead by DALI, with the sizes of their images: what comes before the graph.

A graph of its own, because sizes are known here before anything is decoded, so that windows and matrices are computed by NumPy for a
whole batch at a time, and are no operators of DALI: those would cost as much as a twentieth of all time. And because DALI 2.4's decoder
crashes (SIGSEGV) on a header that it cannot parse, in a batch of 32 and more: it sets samples up on several threads, and where its own
one throws, the others go on in a frame that is gone. Headers are parsed here first, where a failure is an error and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.engines import dali_ops as ops
from gpupipe.engines.base import Job
from gpupipe.index import Column, Files, Spans
from gpupipe.sampler import Plan


@dataclass(frozen=True)
class Read:
    """A plan that was read. data: TensorListCPU of the files' bytes; size: float64 (B, 2), [height, width]; or the error instead."""

    plan: Plan
    data: Any = None
    size: NDArray[np.float64] | None = None
    error: RuntimeError | None = None


class _Paths:
    """What DALI calls for the paths of the next plan; `flight` are the plans that are taken and not read. It does not hold the pipeline,
    which holds it: or both would have to wait for a garbage collection."""

    def __init__(self, column: Column) -> None:
        self._column: Any = column
        self.plans: Iterator[Plan] = iter(())
        self.flight: deque[Plan] = deque()

    def __call__(self) -> NDArray[np.uint8]:
        """Raises StopIteration, which DALI takes for the end, where no plan is left."""
        plan = next(self.plans)
        self.flight.append(plan)
        paths: NDArray[np.uint8] = self._column.encoded_paths(plan.ids)
        return paths


class _Mapped(_Paths):
    """What DALI calls for the bytes of the next plan, where samples are parts of large files: slices of memory maps, which nobody copies."""

    def __init__(self, column: Spans) -> None:
        super().__init__(column)
        self._maps: dict[int, NDArray[np.uint8]] = {}

    def __call__(self) -> Any:
        plan = next(self.plans)
        self.flight.append(plan)
        return [self._slice(int(i)) for i in plan.ids]

    def _slice(self, i: int) -> NDArray[np.uint8]:
        file, begin = int(self._column.file[i]), int(self._column.offset[i])
        if file not in self._maps:
            self._maps[file] = _map(self._column.path(file))
        found = self._maps[file][begin : begin + int(self._column.length[i])]
        return found if len(found) == self._column.length[i] else _NOTHING


    def forget(self, files: set[int]) -> None:
        for file in files & self._maps.keys():
            del self._maps[file]


_NOTHING = np.zeros(1, np.uint8)
"""Stands for what is not there: no header, so that the sample fails, and is named."""


def _map(path: str) -> NDArray[np.uint8]:
    """A file, memory-mapped; nothing where it cannot be, so that its samples fail and are named."""
    try:
        return np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):
        return _NOTHING[:0]


class Reader:
    """An iterator of Read, in the order of the plans; iteration ends where the plans do."""

    def __init__(self, job: Job, exif: bool) -> None:
        """exif: whether sizes are those of images that were turned as their EXIF tag says."""
        column = job.index.columns[job.index.main]
        self._paths = _Mapped(column) if isinstance(column, Spans) else _Paths(column)
        self._fresh = True
        self._pipe: Any = Pipeline(job.loader.batch_size, job.threads, None, prefetch_queue_depth=1, exec_dynamic=True)
        with self._pipe:
            if isinstance(column, Files):
                data = ops.read(fn.external_source(self._paths, batch=True, dtype=types.UINT8, ndim=1))
            else:
                data = fn.external_source(self._paths, batch=True, dtype=types.UINT8, ndim=1, no_copy=True)
            self._pipe.set_outputs(data, ops.encoded_shape(data, exif))
        self._pipe.build()

    def start(self, plans: Iterable[Plan]) -> None:
        """Begin anew, behind the end of an iteration, and read the first."""
        self._paths.plans = iter(plans)
        if not self._fresh:
            self._pipe.reset()
        self._fresh = False
        self._pipe.schedule_run()

    def let_go(self, files: set[int]) -> None:
        """Forget the memory maps of these files; each goes when the last batch that was made of it does."""
        if isinstance(self._paths, _Mapped):
            self._paths.forget(files)

    def end(self) -> None:
        """Take no more plans; the one that was taken still comes."""
        self._paths.plans = iter(())

    @property
    def gone(self) -> bool:
        """Whether a garbage collection took its pipeline down."""
        return getattr(self._pipe, "_pipe", self._pipe) is None

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Read:
        """One that was read; the next is then being read."""
        data = size = error = None
        try:
            data, shape = self._pipe.outputs()
            size = shape.as_array()[:, :2].astype(np.float64)
        except RuntimeError as e:
            error = e
        self._pipe.schedule_run()
        return Read(self._paths.flight.popleft(), data, size, error)
