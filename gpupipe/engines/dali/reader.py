"""Reads the files of the next plans with DALI, and finds the sizes of their images.

The reader takes `prefetch` plans ahead of the graph. So a slow read delays no batch as long as
earlier batches are queued. The reader does not decode, so a plan's files take a fraction of the
memory of its decoded batch.

Reading has a DALI pipeline of its own, for two reasons. First, the image sizes are known before
anything is decoded. So NumPy computes windows and matrices for a whole batch at a time. DALI
operators would add up to 5 % to the total time. Second, not every file may reach DALI's decoder:
see files.py.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.dataset.file_columns import FileColumn
from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.engines.base import Job
from gpupipe.engines.dali.field_readers import PLACEHOLDER, FieldReader
from gpupipe.engines.dali.files import ImageFiles
from gpupipe.engines.dali.lowering import Lowering, Sizes
from gpupipe.engines.dali.operators.array import sizes
from gpupipe.errors import EngineError, StepError
from gpupipe.sampling.sampler import Plan

_NO_PATH = 1
"""Replaces the first byte of a path that DALI must not open. No file has the new path: it is
relative, and begins with a control character.
"""
Inputs = Callable[[NDArray[np.int64]], Any]


@dataclass(frozen=True)
class Read:
    """The files of a plan, or the error that reading them raised.

    Attributes:
        plan: The plan.
        data: The files of each field, as ImageFiles.make_decodable returns them.
        size: [height, width] of each decoded image, (B, 2), by field.
        orientation: The EXIF orientation of each file, (B,), by field of files that were read.
        error: Why the plan could not be read, or None.
        buffers: The buffers of which `data` holds views. They must live as long as `data`.
    """

    plan: Plan
    data: dict[str, Any] = field(default_factory=dict)
    size: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    orientation: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    error: RuntimeError | StepError | EngineError | None = None
    buffers: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class BuildOptions:
    """How an engine builds its readers and graphs.

    Attributes:
        device_id: The GPU's number, or None for DALI's CPU back end.
        may_cut: Whether the decoder may decode only the region of an image that the steps need.
        checks_jpegs: Whether to check JPEGs before DALI decodes them; see FileReader.
        warm_up: Whether to run a full batch first, and to drop it, if the first batch is short.
        fields: The readers of the fields that DALI does not read itself, by field name.
        cache: The decoded cache, or None.
    """

    device_id: int | None
    may_cut: bool
    checks_jpegs: bool
    warm_up: bool
    fields: Mapping[str, FieldReader]
    cache: DecodedCache | None = None


class Reader(Iterator[Read]):
    """Yields a Read for each plan of an iteration, in order.

    This class serves jobs without image files, which have nothing to read.
    """

    def __init__(self) -> None:
        self._plans: Iterator[Plan] = iter(())

    def start(self, plans: Iterable[Plan]) -> None:
        """Start a new iteration over `plans`, and begin to read the first `prefetch` of them.

        Call it only after the previous iteration has ended.
        """
        self._plans = iter(plans)

    def __next__(self) -> Read:
        return Read(next(self._plans))

    def end(self) -> None:
        """Take no more plans. Plans that were taken are still returned."""
        self._plans = iter(())

    def drop(self) -> None:
        """Take no more plans, and discard those that were taken."""
        self.end()

    def close(self) -> None:
        """Release the reader's pipeline and threads. Idempotent."""
        self.end()

    @property
    def was_destroyed(self) -> bool:
        """Whether a garbage collection destroyed the reader's pipeline."""
        return False


def make_reader(
    lowering: Lowering, fields: Mapping[str, FieldReader], checks_jpegs: bool
) -> Reader:
    """Return a FileReader; if no field of the job has image files, a Reader that reads nothing."""
    return FileReader(lowering, fields, checks_jpegs) if lowering.decodings() else Reader()


class _Source:
    """The callback of DALI's external source, which returns the paths or bytes of the next plan.

    The pipeline refers to the source. The source does not refer to the pipeline, since a reference
    cycle would keep both alive until a garbage collection.

    Attributes:
        plans: The plans to read.
        in_flight: The plans that were taken and not read yet. Each Read holds the arrays that DALI
            uses without a copy, and the error that computing the arrays raised, if any.
    """

    def __init__(self, inputs: list[Inputs]) -> None:
        self._inputs = inputs
        self.plans: Iterator[Plan] = iter(())
        self.in_flight: deque[Read] = deque()

    def __call__(self) -> list[Any]:
        """Return the next inputs. After the last plan, raise StopIteration to end DALI's run."""
        plan, error = next(self.plans), None
        try:
            arrays = [inputs(plan.ids) for inputs in self._inputs]
        except EngineError as e:
            # DALI must get a batch all the same, or the order of the plans in flight is lost.
            arrays, error = [[PLACEHOLDER] * len(plan.ids) for _ in self._inputs], e
        self.in_flight.append(Read(plan, error=error, buffers=arrays))
        return arrays


class _Paths:
    """Returns the paths of a field's files, for DALI's file reader.

    The paths of FIFOs are made invalid, because DALI would wait for data. Once a file was found to
    be regular, its type is not checked again.
    """

    def __init__(self, column: FileColumn) -> None:
        self._column = column
        self._is_regular = np.zeros(len(column), np.bool_)

    def __call__(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the paths of rows `ids`; the paths of FIFOs, sockets and devices are made invalid.

        DALI reports a file with an invalid path as missing.
        """
        paths = self._column.encoded_paths(ids)
        unknown = np.flatnonzero(~self._is_regular[ids])
        if len(unknown):
            irregular = unknown[self._column.find_irregular(ids[unknown])]
            self._is_regular[ids[unknown]] = True
            self._is_regular[ids[irregular]] = False
            paths[irregular, 0] = _NO_PATH
        return paths


class FileReader(Reader):
    """Reads the image files of the next plans with a DALI pipeline of its own, and checks them.

    Args:
        lowering: The lowering of the job's steps, which states how each file is decoded.
        fields: The readers of the fields that DALI does not read itself, by field name.
        checks_jpegs: Whether to check JPEGs before DALI decodes them. A plan with a JPEG without an
            end marker then fails. A JPEG that has an end marker, but looks damaged, is decoded by
            gpupipe.decoders instead of DALI; see files.py.
    """

    def __init__(
        self, lowering: Lowering, fields: Mapping[str, FieldReader], checks_jpegs: bool
    ) -> None:
        job, decoding = lowering.job, lowering.decodings()
        self._threads = ThreadPoolExecutor(job.threads, "gpupipe-decoders")
        self._files = {
            name: ImageFiles(len(job.index), how, job.max_pixels, self._threads, checks_jpegs)
            for name, how in decoding.items()
        }
        columns = {name: job.index.columns[name] for name in decoding}
        paths = {
            n: _Paths(column) for n, column in columns.items() if isinstance(column, FileColumn)
        }
        self._source = _Source([paths.get(n) or fields[n].read_encoded for n in decoding])
        self._fresh = True
        depth = job.loader.prefetch
        self._pipe: Any = Pipeline(
            job.loader.batch_size, job.threads, None, prefetch_queue_depth=depth, exec_dynamic=True
        )
        with self._pipe:
            nodes = fn.external_source(
                self._source,
                num_outputs=len(decoding),
                batch=True,
                dtype=types.UINT8,
                ndim=1,
                no_copy=True,
            )
            outputs = (
                # mapping makes LFW 5 % slower, and DALI keeps a record of each file it ever mapped
                fn.io.file.read(node, dont_use_mmap=True) if name in paths else node
                for name, node in zip(decoding, nodes, strict=True)
            )
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
        with suppress(StopIteration):
            while True:
                self._collect()

    def close(self) -> None:
        self.end()
        self._threads.shutdown(wait=False)
        self._pipe = None

    @property
    def was_destroyed(self) -> bool:
        return was_destroyed(self._pipe)

    def __next__(self) -> Read:
        return self._check_files(*self._collect())

    def _collect(self) -> tuple[Read, list[Any]]:
        """Return the next Read, before the checks, and its files; schedule another run."""
        files: list[Any] = []
        error: RuntimeError | None = None
        try:
            files = list(self._pipe.outputs())
        except RuntimeError as e:
            error = e
        self._pipe.schedule_run()
        read = self._source.in_flight.popleft()
        return replace(read, error=read.error or error, buffers=[*read.buffers, *files]), files

    def _check_files(self, read: Read, files: list[Any]) -> Read:
        """Return `read` with the checked `files` and their sizes, or with the error of a check."""
        if read.error is not None:
            return read
        try:
            for (name, field), encoded in zip(self._files.items(), files, strict=False):
                checked = field.make_decodable(read.plan.ids, encoded)
                read.data[name], read.size[name], read.orientation[name] = checked
        except (RuntimeError, EngineError) as e:
            return replace(read, error=e)
        return read


def was_destroyed(pipe: Any) -> bool:
    """Return whether a DALI pipeline was released, or destroyed by a garbage collection."""
    return getattr(pipe, "_pipe", pipe) is None


def find_sizes(job: Job, read: Read) -> Sizes:
    """Return the sizes of a plan's samples, by field.

    The sizes of images come from the headers of the files, and those of arrays from the index.
    """
    arrays = [name for name, spec in job.pipeline.fields.items() if not spec.encoded]
    return read.size | {name: sizes(job, name, read.plan.ids) for name in arrays}
