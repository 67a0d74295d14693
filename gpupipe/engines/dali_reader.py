"""Files of plans, read ahead by DALI, with the sizes of their images: what comes before the graph.

`prefetch` plans are read ahead of those that the graph has taken: a slow read holds nothing up
while there are batches that were read before it. What is read ahead is still encoded, and so takes
a fraction of the memory of as many decoded batches.

A graph of its own, because sizes are known here before anything is decoded, so that windows and matrices are computed by NumPy for a
whole batch at a time, and are no operators of DALI: those would cost as much as a twentieth of all time. And because DALI 2.4's decoder
crashes (SIGSEGV) on a header that it cannot parse, in a batch of 32 and more: it sets samples up on several threads, and where its own
one throws, the others go on in a frame that is gone. Headers are parsed here first, where a failure is an error and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.engines import dali_ops as ops
from gpupipe.engines.base import Job
from gpupipe.engines.jpeg_end import CutOff, check_ends
from gpupipe.engines.maps import Maps
from gpupipe.index import Files, Index
from gpupipe.sampler import Plan

Inputs = Callable[[NDArray[np.int64]], Any]


@dataclass(frozen=True)
class Read:
    """A plan that was read. data: by field, TensorListCPU of the files' bytes; size: by field, float64 (B, 2), [height, width]; or the error instead.

    kept: what `data` is made of without a copy, to be kept as long as it.
    """

    plan: Plan
    data: dict[str, Any] = field(default_factory=dict)
    size: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    error: RuntimeError | None = None
    kept: list[Any] = field(default_factory=list)


class Reader(Protocol):
    """An iterator of Read, in the order of the plans; iteration ends where the plans do."""

    def start(self, plans: Iterable[Plan]) -> None:
        """Begin anew, behind the end of an iteration, and read the first `prefetch`."""

    def end(self) -> None:
        """Take no more plans; those that were taken still come."""

    def drop(self) -> None:
        """Take no more plans, and drop those that were taken."""

    @property
    def gone(self) -> bool:
        """Whether a garbage collection took its pipeline down."""

    def __iter__(self) -> Iterator[Read]: ...

    def __next__(self) -> Read:
        """One that was read; the next one is begun in its place."""


def reader(job: Job, exif: dict[str, bool], maps: dict[str, Maps], jpeg_ends: bool) -> Reader:
    """The reader of the fields of a job that are image files. exif: by field, whether sizes are those of images that were turned as their EXIF tag says.
    maps: of the fields that are parts of files. jpeg_ends: whether a JPEG without an end is an error here; see jpeg_end.py."""
    return FileReader(job, exif, maps, jpeg_ends) if exif else NoReader()


class NoReader:
    """The Reader where there is nothing to read ahead: all fields are mapped."""

    gone = False

    def __init__(self) -> None:
        self._plans: Iterator[Plan] = iter(())

    def start(self, plans: Iterable[Plan]) -> None:
        self._plans = iter(plans)

    def end(self) -> None:
        self._plans = iter(())

    drop = end

    def __iter__(self) -> NoReader:
        return self

    def __next__(self) -> Read:
        return Read(next(self._plans))


class _Source:
    """What DALI calls for what it is to read of the next plan; `flight` are the plans that are taken and not read, with what DALI was given without
    a copy. It does not hold the pipeline, which holds it: or both would have to wait for a garbage collection."""

    def __init__(self, inputs: list[Inputs]) -> None:
        self._inputs = inputs
        self.plans: Iterator[Plan] = iter(())
        self.flight: deque[tuple[Plan, list[Any]]] = deque()

    def __call__(self) -> list[Any]:
        """Raises StopIteration, which DALI takes for the end, where no plan is left."""
        plan = next(self.plans)
        kept = [inputs(plan.ids) for inputs in self._inputs]
        self.flight.append((plan, kept))
        return kept


def _inputs(index: Index, name: str, maps: dict[str, Maps]) -> Inputs:
    """What DALI is given for a field: paths, which it reads, or the bytes, memory-mapped."""
    column = index.columns[name]
    return column.encoded_paths if isinstance(column, Files) else maps[name].encoded


class FileReader:
    """The Reader of image files."""

    def __init__(self, job: Job, exif: dict[str, bool], maps: dict[str, Maps], jpeg_ends: bool) -> None:
        self._names = list(exif)
        self._jpeg_ends = jpeg_ends
        self._source = _Source([_inputs(job.index, name, maps) for name in exif])
        self._fresh = True
        depth = job.loader.prefetch
        self._pipe: Any = Pipeline(job.loader.batch_size, job.threads, None, prefetch_queue_depth=depth, exec_dynamic=True)
        with self._pipe:
            given = fn.external_source(self._source, num_outputs=len(exif), batch=True, dtype=types.UINT8, ndim=1, no_copy=True)
            outputs = []
            for node, (name, turned) in zip(given, exif.items(), strict=True):
                data = ops.read(node) if isinstance(job.index.columns[name], Files) else node
                outputs += [data, ops.encoded_shape(data, turned)]
            self._pipe.set_outputs(*outputs)
        self._pipe.build()

    def start(self, plans: Iterable[Plan]) -> None:
        self._source.plans = iter(plans)
        if not self._fresh:
            self._pipe.reset()
        self._fresh = False
        self._pipe.schedule_run()

    def end(self) -> None:
        self._source.plans = iter(())

    def drop(self) -> None:
        self.end()
        for _ in self:
            pass

    @property
    def gone(self) -> bool:
        return getattr(self._pipe, "_pipe", self._pipe) is None

    def __iter__(self) -> FileReader:
        return self

    def __next__(self) -> Read:
        data: list[Any] = []
        error = None
        try:
            data = list(self._pipe.outputs())
        except RuntimeError as e:
            error = e
        self._pipe.schedule_run()
        size = [shape.as_array()[:, :2].astype(np.float64) for shape in data[1::2]]
        plan, kept = self._source.flight.popleft()
        if self._jpeg_ends:
            error = error or _missing_end(data[::2])
        return Read(plan, dict(zip(self._names, data[::2], strict=False)), dict(zip(self._names, size, strict=False)), error, kept)


def _missing_end(fields: list[Any]) -> CutOff | None:
    """What is wrong with a batch, of which the encoded bytes of each field are given."""
    try:
        for field in fields:
            check_ends(field)
    except CutOff as e:
        return e
    return None
