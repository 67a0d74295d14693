"""The DALI engine: plans in, tensors out, on a GPU or on the CPU.

How it runs, and in which order it stops:

1. While DALI schedules a run, it calls a source for the inputs of the next batch. The inputs are
   the bytes that the Reader has read ahead, and one array for each per-sample argument. DALI takes
   inputs `prefetch` plans ahead of the delivered batch.
2. DALIGenericIterator hands over a finished batch through DLPack, without a copy. The tensor owns
   its memory from then on.
3. Labels and ids never enter DALI. They come from the index and become tensors directly.
4. If a run fails, DALI loses the whole batch. The engine stops the source and collects the batches
   in flight, so that their order stays. It runs the suspects alone to find the samples to blame,
   runs the rest of the batch again, and starts the source again. Files that fail before the graph,
   because they are missing or no image, take the same path. No sample is blamed if the machine
   failed: DALI's message says so, or a known good image fails too.
5. The plans continue across the end of an epoch. Closing the generator stops the source and drops
   the batches in flight.
6. At exit, engines close before DALI's own exit handler destroys the pipelines: exit handlers run
   in reverse order, and DALI registers its own earlier.
7. Forked children freeze the garbage collector: a DALI pipeline's destructor would wait for threads
   that do not exist in the child.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any
from weakref import ref

import numpy as np
import torch
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from gpupipe.config import LoaderConfig
from gpupipe.dataset.index import SpanColumn
from gpupipe.engines.bad_samples import Quarantine, blame, refused_dtype, suspects
from gpupipe.engines.base import (
    Batch,
    Engine,
    LoadSpec,
    Shapes,
    check_shapes,
    labels_and_values,
    reader_operators,
)
from gpupipe.engines.dali.affinity import check_affinity
from gpupipe.engines.dali.array import sizes
from gpupipe.engines.dali.checks import check_batch, check_steps
from gpupipe.engines.dali.dtypes import as_integers
from gpupipe.engines.dali.graph import Device, Lowering, cuts, delivered, layout
from gpupipe.engines.dali.known_good import KnownGood
from gpupipe.engines.dali.memory import check_memory
from gpupipe.engines.dali.mmap_reader import Maps
from gpupipe.engines.dali.reader import Read, Reader, reader
from gpupipe.errors import EngineError, StepError
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.machine_failures import machine_errors, machine_failure
from gpupipe.runtime.malloc import give_back, pool, release_unused_memory
from gpupipe.runtime.region_decoding import region_decode
from gpupipe.sampling.sampler import Plan, Sampler

Tensors = dict[str, torch.Tensor]
Outcome = Tensors | RuntimeError
os.register_at_fork(after_in_child=gc.freeze)
_EPOCHS_BETWEEN_TRIMS = 8
"""How many epochs pass between calls of malloc_trim. After a trim, the page faults cost 2 % of an
epoch of 5,000 small images, so the engine does not trim after each epoch.
"""


@dataclass(frozen=True)
class _InFlight:
    """A plan that was taken and not delivered yet.

    Attributes:
        plan: The plan.
        keep_alive: The buffers that DALI uses without a copy, and the buffers that they are views
            of.
        error: Why the plan failed before it reached the graph, or None.
    """

    plan: Plan
    keep_alive: Any = None
    error: RuntimeError | StepError | EngineError | None = None


class _Source:
    """The callback of DALI's external source, which returns the inputs of the next batch."""

    def __init__(self, inputs: Callable[[Read], list[Any]]) -> None:
        self._inputs = inputs
        self.reader: Reader
        self.in_flight: deque[_InFlight] = deque()

    def __call__(self) -> list[Any]:
        """Return the next inputs. After the last plan, raise StopIteration to end DALI's run.

        A plan that fails here stops the reader, so that the batches in flight can be collected.
        """
        while True:
            read = next(self.reader)
            try:
                if read.error is not None:
                    raise read.error
                inputs = self._inputs(read)
            except (RuntimeError, StepError, EngineError) as e:
                self.in_flight.append(_InFlight(read.plan, error=e))
                self.reader.end()
                continue
            self.in_flight.append(_InFlight(read.plan, (read, inputs)))
            return inputs


class DaliEngine(Engine):
    """Runs a job with DALI.

    Args:
        job: The samples, the steps and the loader settings.
        device_id: The GPU's number, or None for DALI's CPU back end.
        may_cut: Whether the decoder may decode a region of an image.
        jpeg_ends: Whether JPEGs without an end marker are refused before the decoder. By default
            only on a GPU; see jpeg_end.py.
        warm_up: Whether a full batch is decoded first if the first batch is short. By default only
            if the hardware decoder may be used; see _with_warm_up.
    """

    name = "dali"
    settings = (
        Sampler.settings
        | Quarantine.settings
        | {
            "threads",
            "prefetch",
            "dtype",
            "memory_format",
            "hw_decoder_load",
            "set_affinity",
            "gpu_memory",
        }
    )

    def __init__(
        self,
        job: LoadSpec,
        device_id: int | None,
        may_cut: bool = True,
        jpeg_ends: bool | None = None,
        warm_up: bool | None = None,
    ) -> None:
        self.device = "cpu" if device_id is None else f"gpu:{device_id}"
        self._torch_device = (
            torch.device("cpu") if device_id is None else torch.device("cuda", device_id)
        )
        self.parallelism = job.threads
        self.batches_ahead = job.loader.prefetch
        self._job = job
        self._quarantine = Quarantine(job)
        pool()
        device: Device = "cpu" if device_id is None else "gpu"
        lowering = Lowering(job, device, may_cut)
        self._maps = {
            name: Maps(job.index, name)
            for name, column in job.index.columns.items()
            if isinstance(column, SpanColumn)
        }
        self._source = _Source(_inputs(job, lowering, self._maps))
        self._graph = lowering.graph(device_id, self._source)
        self._source.reader = reader(
            job,
            self._graph.decoding,
            self._maps,
            device_id is not None if jpeg_ends is None else jpeg_ends,
        )
        self._ready: deque[tuple[Plan, Outcome | StepError | EngineError]] = deque()
        self._iterator: Any = DALIGenericIterator(
            [self._graph.pipe],
            list(job.pipeline.fields),
            auto_reset=False,
            prepare_first_batch=False,
        )
        self._known_good = KnownGood(device_id)
        self._fresh = True
        hardware = (
            device_id is not None
            and job.loader.hw_decoder_load > 0
            and any(spec.encoded for spec in job.pipeline.fields.values())
        )
        self._warm_up = (
            min(job.loader.batch_size, len(job.index))
            if (hardware if warm_up is None else warm_up)
            else 0
        )
        self._epochs = 0
        self._next_outputs: Callable[[], Any] = self._next_tensors
        self._at_exit = partial(_close, ref(self), os.getpid())
        atexit.register(self._at_exit)

    @classmethod
    def unused(cls, loader: LoaderConfig) -> dict[str, str]:
        return (
            dict.fromkeys(("hw_decoder_load", "gpu_memory"), "device is cpu")
            if loader.device == "cpu"
            else {}
        )

    @classmethod
    def on(cls, job: LoadSpec, device: str) -> DaliEngine:
        number = resolve(device)
        if job.loader.set_affinity:
            check_affinity(job.threads, number)
        check_steps(job, number, _inputs)
        may_cut = number is None or (cuts(job) and region_decode(number))
        if job.loader.gpu_memory is not None and number is not None:
            check_memory(job, job.loader.gpu_memory, may_cut)
        return cls(job, number, may_cut)

    @property
    def skipped(self) -> int:
        return len(self._quarantine)

    @property
    def quarantine_file(self) -> str:
        return str(self._quarantine.file)

    def lowering(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return [
            *reader_operators(self._job),
            *((e.op, e.device, e.steps) for e in self._graph.emitted),
        ]

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        with machine_errors():
            yield from self._batches(plans)

    def _batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        self._quarantine.check()
        self._stop()
        self._quarantine.refusal = None
        more = True
        try:
            while more and self._quarantine.refusal is None:
                more = False
                for plan, outcome in self._run(self._quarantine.without_bad(plans)):
                    if isinstance(outcome, RuntimeError):
                        yield from self._repair([(plan, outcome), *self._flush()])
                        more = True
                        break
                    yield plan, self._batch(plan, outcome)
                    self._trim_memory(plan)
        finally:
            self._stop()
        if self._quarantine.refusal is not None:
            raise self._quarantine.refusal

    def _trim_memory(self, plan: Plan) -> None:
        """Return free memory to the system after the last batch of every eighth epoch."""
        self._epochs += plan.last
        if plan.last and self._epochs % _EPOCHS_BETWEEN_TRIMS == 0:
            give_back()

    def unmap_files(self, files: set[int]) -> None:
        for maps in self._maps.values():
            maps.unmap_files(files)

    def close(self) -> None:
        atexit.unregister(self._at_exit)
        if self._iterator is not None:
            # A GPU that has failed raises here. Closing must not hide why it failed.
            with contextlib.suppress(RuntimeError):
                self._stop()
            # DALI's operators and the source refer to one another. Without this line, the reader's
            # pipeline would stay alive until a garbage collection.
            del self._source.reader
            self._iterator = self._graph = None  # type: ignore[assignment]
            self._source = self._known_good = None  # type: ignore[assignment]
            if self._torch_device.type == "cuda":
                release_unused_memory()

    # --- running

    def _run(self, plans: Iterable[Plan]) -> Iterator[tuple[Plan, Outcome]]:
        """Run plans through an empty pipeline, and yield each with its tensors or its error.

        After an error, the plans in flight still succeed. Plans that were not taken yet remain for
        the next run.
        """
        self._source.reader.start(self._with_warm_up(plans))
        if not self._fresh:
            self._iterator.reset()
        self._fresh = False
        yield from self._results()

    def _with_warm_up(self, plans: Iterable[Plan]) -> Iterator[Plan]:
        """Return `plans`. Before the engine's first batch, decode and drop a full one if needed.

        The size of the first batch sets the hardware decoder's share of all later batches. So if
        the first plan has fewer than `_warm_up` samples, a batch that repeats them runs first.
        If that batch fails, the plan itself fails too.
        """
        plans, size = iter(plans), self._warm_up
        if not size or (first := next(plans, None)) is None:
            return plans
        self._warm_up = 0
        if len(first.ids) < size:
            for _ in self._run([replace(first, ids=np.resize(first.ids, size))]):
                pass
        return chain([first], plans)

    def _results(self) -> Iterator[tuple[Plan, Outcome]]:
        while self._ready or self._advance():
            plan, outcome = self._ready.popleft()
            if isinstance(outcome, StepError | EngineError):
                raise outcome
            yield plan, outcome

    def _advance(self) -> bool:
        """Wait for the next batch, and append the failed plans before it and the batch to `_ready`.

        Return False if no batch is left.
        """
        in_flight = self._source.in_flight
        outcome: Outcome | StepError | EngineError | None = None
        try:
            outcome = self._next_outputs()
        except StopIteration:
            pass
        except RuntimeError as e:
            if not in_flight:  # no plan's error: a GPU that has failed fails at everything
                raise
            outcome = e
            self._graph.pipe.schedule_run()
        while in_flight and (error := in_flight[0].error) is not None:
            self._ready.append((in_flight.popleft().plan, error))
        if outcome is not None:
            self._ready.append((in_flight.popleft().plan, outcome))
        return bool(self._ready)

    def _next_tensors(self) -> Tensors:
        tensors: Tensors = next(self._iterator)[0]
        return tensors

    def _next_undelivered(self) -> Any:
        """Run the next batch and leave it in DALI, so that its images may differ in size."""
        pipe = self._graph.pipe
        if pipe.empty():
            pipe.schedule_run()
        outputs = pipe.share_outputs()
        pipe.release_outputs()
        pipe.schedule_run()
        return outputs

    def _flush(self) -> list[tuple[Plan, Outcome]]:
        """Take no more plans, and collect the batches in flight."""
        self._source.reader.end()
        return list(self._results())

    def _stop(self) -> None:
        if (
            not self._fresh
            and self._iterator is not None
            and not (_is_destroyed(self._graph.pipe) or self._source.reader.gone)
        ):
            self._source.reader.drop()
            while self._ready or self._advance():
                self._ready.clear()

    # --- runs without delivery

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        reader = self._source.reader
        for first in plans:
            reader.start(chain([first], plans))
            yield from (len(read.plan.ids) * (read.error is None) for read in reader)

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        self._next_outputs = self._next_undelivered
        try:
            for first in plans:
                for plan, outcome in self._run(chain([first], plans)):
                    if isinstance(outcome, RuntimeError):
                        self._raise_unless_sample_failed(outcome)
                    yield 0 if isinstance(outcome, RuntimeError) else len(plan.ids)
        finally:
            self._stop()
            self._next_outputs = self._next_tensors

    # --- delivering

    def _batch(self, plan: Plan, tensors: Tensors) -> Batch:
        batch = {name: self._convert(name, tensor) for name, tensor in tensors.items()}
        check_batch(self._job, batch)
        return batch | labels_and_values(self._job.index, plan, self._torch_device)

    def _convert(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Convert DALI's output to the field's axis order (B, C, H, W) and its final dtype."""
        if layout(self._job, name) == "HWC":
            tensor = tensor.permute(0, 3, 1, 2)
        dtype = delivered(self._job, name)
        tensor = tensor if as_integers(dtype) == dtype else tensor.view(getattr(torch, dtype))
        return (
            tensor.to(torch.bfloat16)
            if self._job.loader.dtype == "bfloat16" and name == self._job.pipeline.main
            else tensor
        )

    # --- failing

    def _repair(self, outcomes: list[tuple[Plan, Outcome]]) -> Iterator[tuple[Plan, Batch]]:
        """Yield the batches of `outcomes` in order; failed ones run again without bad samples."""
        for plan, outcome in outcomes:
            if not isinstance(outcome, RuntimeError):
                yield plan, self._batch(plan, outcome)
                continue
            for reduced_plan, tensors in self._without_culprits(plan, outcome):
                yield reduced_plan, self._batch(reduced_plan, tensors)

    def _without_culprits(self, plan: Plan, error: RuntimeError) -> Iterator[tuple[Plan, Tensors]]:
        """Find the samples that fail alone, first among the suspects, and run the rest again."""
        self._raise_unless_sample_failed(error)
        suspicious = plan.ids[suspects(self._job.index, plan.ids)]
        if len(suspicious) and self._try_alone(plan, suspicious):
            rest = self._run_good(plan)
            if not isinstance(rest, RuntimeError):
                yield from rest
                return
        self._try_alone(plan, self._quarantine.good(plan.ids))
        rest = self._run_good(plan)
        if isinstance(rest, RuntimeError):
            self._raise_unless_sample_failed(rest)
            raise EngineError(
                "DALI failed twice on a batch whose samples pass one by one, the first of "
                f"them {self._job.index.path(int(plan.ids[0]))}: {rest}"
            ) from error
        yield from rest

    def _try_alone(self, plan: Plan, ids: Any) -> bool:
        """Run samples one by one, and quarantine those that fail. Return whether any failed.

        Raises ShapeError if none fails and their sizes differ, and EngineError if a known good
        image fails too.
        """
        shapes: list[Shapes] = []
        has_failures = False
        for alone, outcome in self._run_all(
            replace(plan, ids=ids[i : i + 1]) for i in range(len(ids))
        ):
            if not isinstance(outcome, RuntimeError):
                shapes.append(
                    {
                        name: tuple(self._convert(name, tensor).shape[1:])
                        for name, tensor in outcome.items()
                    }
                )
                continue
            has_failures = True
            id = int(alone.ids[0])
            self._raise_unless_sample_failed(outcome, id)
            self._known_good.check(str(outcome))
            self._quarantine.add(id, blame(self._job.index, id, str(outcome)))
        if not has_failures:
            check_shapes(shapes, replace(plan, ids=ids), self._job)
        return has_failures

    def _raise_unless_sample_failed(self, error: RuntimeError, id: int | None = None) -> None:
        """Raise EngineError if the machine failed, or an operator refused the dtype of all samples.

        `id` is the sample if it ran alone.
        """
        failure = machine_failure(error)
        if not failure and (refused := refused_dtype(str(error))):
            failure = (
                f"an operator of DALI does not take what a step gave it: {refused.rstrip('.')}. "
                f"Write 'to_dtype: {{dtype: float32}}' before that step"
            )
        if failure:
            raise EngineError(
                failure if id is None else f"{failure}. It happened at {self._job.index.path(id)}"
            ) from error

    def _run_all(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Outcome]]:
        """Run all plans; each failure starts another run for the remaining ones."""
        while outcomes := list(self._run(plans)):
            yield from outcomes

    def _run_good(self, plan: Plan) -> list[tuple[Plan, Tensors]] | RuntimeError:
        """Run the good samples of a plan as one batch. Return [] if none is left."""
        good = self._quarantine.good(plan.ids)
        if not len(good):
            self._quarantine.refuse_to_lose_a_step()
            return []
        outcomes = list(self._run([replace(plan, ids=good)]))
        failed = next((o for _, o in outcomes if isinstance(o, RuntimeError)), None)
        return failed or [(p, o) for p, o in outcomes if not isinstance(o, RuntimeError)]


def _inputs(
    job: LoadSpec, lowering: Lowering, mapped: dict[str, Maps]
) -> Callable[[Read], list[Any]]:
    """Return the function that computes the inputs of a job's graph from a Read.

    The function holds no reference to the engine, so that there is no reference cycle. It raises
    Missing, SampleIncompatible, StepError.
    """
    maps = {name: mapped[name] for name, spec in job.pipeline.fields.items() if not spec.encoded}

    def inputs(read: Read) -> list[Any]:
        size = read.size | {name: sizes(job, name, read.plan.ids) for name in maps}
        data = [
            maps[name].arrays(read.plan.ids) if name in maps else read.data[name]
            for name in job.pipeline.fields
        ]
        return [*data, *lowering.values(read.plan, size)]

    return inputs


def _is_destroyed(pipe: Any) -> bool:
    """Whether a garbage collection of the engine and its pipeline destroyed the pipeline first."""
    return getattr(pipe, "_pipe", pipe) is None


def _close(engine: ref[DaliEngine], process: int) -> None:
    """Close the engine at exit, before DALI destroys pipelines that an open iteration still uses.

    A forked child does nothing.
    """
    alive = engine()
    if alive is not None and os.getpid() == process:
        alive.close()
