"""Files of plans, read ahead by DALI, with the sizes of their images: what comes before the graph.

`prefetch` plans are read ahead of those that the graph has taken: a slow read holds nothing up
while there are batches that were read before it. What is read ahead is still encoded, and so takes
a fraction of the memory of as many decoded batches.

A graph of its own, because sizes are known here before anything is decoded, so that windows and
matrices are computed by NumPy for a whole batch at a time, and are no operators of DALI: those
would cost as much as a twentieth of all time. And because not every file may reach DALI's decoder:
see dali_files.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.dataset.index import FileColumn, Index
from gpupipe.engines.base import LoadSpec
from gpupipe.engines.dali import ops
from gpupipe.engines.dali.files import ImageFiles
from gpupipe.engines.dali.jpeg_end import check_ends
from gpupipe.engines.dali.mmap_reader import Maps
from gpupipe.engines.dali.pending_ops import Decoding
from gpupipe.errors import EngineError
from gpupipe.sampling.sampler import Plan

Inputs = Callable[[NDArray[np.int64]], Any]


@dataclass(frozen=True)
class Read:
    """A plan that was read, or why it could not be.

    data, size: by field, what ImageFiles.look returns of the files' bytes.

    kept: what `data` is made of without a copy, to be kept as long as it.
    """

    plan: Plan
    data: dict[str, Any] = field(default_factory=dict)
    size: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    error: RuntimeError | EngineError | None = None
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


def reader(
    job: LoadSpec, decoding: dict[str, Decoding], maps: dict[str, Maps], jpeg_ends: bool
) -> Reader:
    """The reader of the fields of a job that are image files. decoding: by field, how they will be
    decoded. maps: of the fields that are parts of files. jpeg_ends: whether a JPEG without an end
    is an error here; see jpeg_end.py.
    """
    return FileReader(job, decoding, maps, jpeg_ends) if decoding else NoReader()


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
    """What DALI calls for what it is to read of the next plan; `flight` are the plans that are
    taken and not read, with what DALI was given without a copy. It does not hold the pipeline,
    which holds it: or both would have to wait for a garbage collection.
    """

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
    return column.encoded_paths if isinstance(column, FileColumn) else maps[name].encoded


class FileReader:
    """The Reader of image files."""

    def __init__(
        self, job: LoadSpec, decoding: dict[str, Decoding], maps: dict[str, Maps], jpeg_ends: bool
    ) -> None:
        threads = ThreadPoolExecutor(job.threads, "gpupipe-pillow")
        limit = job.max_pixels
        self._files = {
            name: ImageFiles(len(job.index), how, limit, threads) for name, how in decoding.items()
        }
        self._jpeg_ends = jpeg_ends
        self._source = _Source([_inputs(job.index, name, maps) for name in decoding])
        self._fresh = True
        depth = job.loader.prefetch
        self._pipe: Any = Pipeline(
            job.loader.batch_size, job.threads, None, prefetch_queue_depth=depth, exec_dynamic=True
        )
        with self._pipe:
            given = fn.external_source(
                self._source,
                num_outputs=len(decoding),
                batch=True,
                dtype=types.UINT8,
                ndim=1,
                no_copy=True,
            )
            paths = [isinstance(job.index.columns[name], FileColumn) for name in decoding]
            self._pipe.set_outputs(
                *(
                    ops.read(node) if is_path else node
                    for node, is_path in zip(given, paths, strict=True)
                )
            )
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
        with suppress(StopIteration):
            while True:
                self._collect()

    @property
    def gone(self) -> bool:
        return getattr(self._pipe, "_pipe", self._pipe) is None

    def __iter__(self) -> FileReader:
        return self

    def __next__(self) -> Read:
        return self._looked_at(*self._collect())

    def _collect(self) -> tuple[Read, list[Any]]:
        """Return the next plan and its files, and schedule another."""
        files: list[Any] = []
        error: RuntimeError | None = None
        try:
            files = list(self._pipe.outputs())
        except RuntimeError as e:
            error = e
        self._pipe.schedule_run()
        plan, kept = self._source.flight.popleft()
        return Read(plan, error=error, kept=[kept, files]), files

    def _looked_at(self, read: Read, files: list[Any]) -> Read:
        """With what the graph gets of `files`, or with the error that they are."""
        try:
            for (name, field), encoded in zip(self._files.items(), files, strict=False):
                if self._jpeg_ends:
                    check_ends(encoded)
                read.data[name], read.size[name] = field.look(read.plan.ids, encoded)
        except (RuntimeError, EngineError) as e:
            return replace(read, error=e)
        return read
