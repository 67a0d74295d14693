"""The DALI engine: plans in, tensors out, on a GPU or on the CPU.

How it runs, and in which order it stops:

1. DALI asks a source for the next batch while it schedules: bytes that the Reader has read ahead,
   and the values of one plan for each argument that differs from sample to sample, `prefetch` plans
   ahead of what is delivered.
2. DALIGenericIterator hands a finished batch over through DLPack, without a copy; the tensor owns
   its memory from then on.
3. Labels and ids never enter DALI: they are known here, and become tensors directly.
4. A run that fails costs its batch. The source stops; what is in flight is collected, so that the
   order stays; the samples to blame are found by running suspects alone; the rest of the batch runs
   again; then the source goes on. What fails before the graph, being missing or no image, costs the
   same. No sample is to blame where the machine fails: by what DALI says, or because an image that
   is known to be good fails too.
5. The plans go on over the end of an epoch. Closing the generator stops the source and drops what
   is in flight.
6. At the end of the process engines close before DALI's own exit handler, which is registered
   earlier, takes the pipelines down.
7. A forked child has none of DALI's threads, and a pipeline's destructor would wait for them: what
   is garbage there is left alone.
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
from gpupipe.engines.base import Batch, Engine, LoadSpec, Shapes, check_shapes, known, read_by
from gpupipe.engines.dali.affinity import check_affinity
from gpupipe.engines.dali.array import sizes
from gpupipe.engines.dali.checks import check_batch, check_steps
from gpupipe.engines.dali.graph import Device, Lowering, cuts, delivered, layout
from gpupipe.engines.dali.known_good import KnownGood
from gpupipe.engines.dali.memory import check_memory
from gpupipe.engines.dali.mmap_reader import Maps
from gpupipe.engines.dali.reader import Read, Reader, reader
from gpupipe.errors import EngineError, StepError
from gpupipe.pipeline.dtypes import as_integers
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.machine_failures import machine_errors, machine_failure
from gpupipe.runtime.malloc import give_back, pool, release_unused_memory
from gpupipe.runtime.region_decoding import region_decode
from gpupipe.sampling.sampler import Plan, Sampler

Tensors = dict[str, torch.Tensor]
Outcome = Tensors | RuntimeError
os.register_at_fork(after_in_child=gc.freeze)
_EPOCHS_BETWEEN_TRIMS = 8
"""Faulting the memory in again costs 2 % of an epoch of 5,000 small images, so it is not given back
after each.
"""


@dataclass(frozen=True)
class _InFlight:
    """A plan on its way. `kept` is what DALI was given without a copy, and what that is made of;
    `error` is why it never got as far as the graph.
    """

    plan: Plan
    kept: Any = None
    error: RuntimeError | StepError | EngineError | None = None


class _Source:
    """What DALI calls for the inputs of the next batch; `flight` are the plans that are taken and
    not delivered.
    """

    def __init__(self, inputs: Callable[[Read], list[Any]]) -> None:
        self._inputs = inputs
        self.reader: Reader
        self.flight: deque[_InFlight] = deque()

    def __call__(self) -> list[Any]:
        """Raises StopIteration, which DALI takes for the end, where no plan is left."""
        while True:
            read = next(self.reader)
            try:
                if read.error is not None:
                    raise read.error
                kept = self._inputs(read)
            except (RuntimeError, StepError, EngineError) as e:
                self.flight.append(_InFlight(read.plan, error=e))
                self.reader.end()
                continue
            self.flight.append(_InFlight(read.plan, (read, kept)))
            return kept


class DaliEngine(Engine):
    """Runs a job with DALI. device_id: the GPU's number, or None for the CPU back end; may_cut:
    whether its decoder may be asked for a part of an image. jpeg_ends: whether JPEGs without an end
    are refused before the decoder; by default on a GPU, see jpeg_end.py. warm_up: whether a full
    batch is decoded before a first one that is short; by default where the hardware decoder may be
    used, see _warmed_up.
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
        self._take: Callable[[], Any] = self._tensors
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
        return [*read_by(self._job), *((e.op, e.device, e.steps) for e in self._graph.emitted)]

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
                        late = [(plan, outcome), *self._flush()]
                        yield from self._repaired(late)
                        more = True
                        break
                    yield plan, self._batch(plan, outcome)
                    self._tidy(plan)
        finally:
            self._stop()
        if self._quarantine.refusal is not None:
            raise self._quarantine.refusal

    def _tidy(self, plan: Plan) -> None:
        self._epochs += plan.last
        if plan.last and self._epochs % _EPOCHS_BETWEEN_TRIMS == 0:
            give_back()

    def let_go(self, files: set[int]) -> None:
        for maps in self._maps.values():
            maps.let_go(files)

    def close(self) -> None:
        atexit.unregister(self._at_exit)
        if self._iterator is not None:
            with contextlib.suppress(
                RuntimeError
            ):  # of a GPU that has failed: closing must not hide why
                self._stop()
            # or it would wait for a garbage collection, since DALI's operators hold the source and
            # one another
            del self._source.reader
            # a closed engine has none
            self._iterator = self._graph = None  # type: ignore[assignment]
            self._source = self._known_good = None  # type: ignore[assignment]
            if self._torch_device.type == "cuda":
                release_unused_memory()

    # --- running

    def _run(self, plans: Iterable[Plan]) -> Iterator[tuple[Plan, Outcome]]:
        """Put plans through an empty pipeline; a plan that fails comes back with the error. Those
        behind it are not harmed, but plans that were not taken yet then wait for the next run."""
        self._source.reader.start(self._warmed_up(plans))
        if not self._fresh:
            self._iterator.reset()
        self._fresh = False
        yield from self._results()

    def _warmed_up(self, plans: Iterable[Plan]) -> Iterator[Plan]:
        """`plans`, after a batch of `_warm_up` samples if they are the first, and begin with a
        shorter batch.

        The size of the first batch sets the hardware decoder's share of all later ones. The batch
        repeats the samples of the first plan. It is dropped; if it fails, the plan itself will,
        too.
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
        """Wait for the next batch; it goes into `_ready`, behind the failures before it.

        False where there is nothing more.
        """
        flight = self._source.flight
        outcome: Outcome | StepError | EngineError | None = None
        try:
            outcome = self._take()
        except StopIteration:
            pass
        except RuntimeError as e:
            if not flight:  # a GPU that failed fails at everything
                raise
            outcome = e
            self._graph.pipe.schedule_run()
        while flight and (error := flight[0].error) is not None:
            self._ready.append((flight.popleft().plan, error))
        if outcome is not None:
            self._ready.append((flight.popleft().plan, outcome))
        return bool(self._ready)

    def _tensors(self) -> Tensors:
        found: Tensors = next(self._iterator)[0]
        return found

    def _release(self) -> Any:
        """The next batch, which stays DALI's, so that its images may differ in size."""
        pipe = self._graph.pipe
        if pipe.empty():
            pipe.schedule_run()
        made = pipe.share_outputs()
        pipe.release_outputs()
        pipe.schedule_run()
        return made

    def _flush(self) -> list[tuple[Plan, Outcome]]:
        """Take no more plans, and collect what is in flight."""
        self._source.reader.end()
        return list(self._results())

    def _stop(self) -> None:
        if (
            not self._fresh
            and self._iterator is not None
            and not (_gone(self._graph.pipe) or self._source.reader.gone)
        ):
            self._source.reader.drop()
            while self._ready or self._advance():
                self._ready.clear()

    # --- work of which nothing is delivered

    def reading(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        reader = self._source.reader
        for beginning in plans:
            reader.start(chain([beginning], plans))
            yield from (len(read.plan.ids) * (read.error is None) for read in reader)

    def making(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        self._take = self._release
        try:
            for beginning in plans:
                for plan, outcome in self._run(chain([beginning], plans)):
                    if isinstance(outcome, RuntimeError):
                        self._check_not_the_machine(outcome)
                    yield 0 if isinstance(outcome, RuntimeError) else len(plan.ids)
        finally:
            self._stop()
            self._take = self._tensors

    # --- delivering

    def _batch(self, plan: Plan, tensors: Tensors) -> Batch:
        batch = {name: self._delivered(name, tensor) for name, tensor in tensors.items()}
        check_batch(self._job, batch)
        return batch | known(self._job.index, plan, self._torch_device)

    def _delivered(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
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

    def _repaired(self, late: list[tuple[Plan, Outcome]]) -> Iterator[tuple[Plan, Batch]]:
        """The batches of runs of which some failed, in order, without the samples to blame."""
        for plan, outcome in late:
            if not isinstance(outcome, RuntimeError):
                yield plan, self._batch(plan, outcome)
                continue
            for again, tensors in self._without_culprits(plan, outcome):
                yield again, self._batch(again, tensors)

    def _without_culprits(self, plan: Plan, error: RuntimeError) -> Iterator[tuple[Plan, Tensors]]:
        """The batch of a plan that failed, run again without the samples that fail alone: suspects
        are tried first, then all.
        """
        self._check_not_the_machine(error)
        suspicious = plan.ids[suspects(self._job.index, plan.ids)]
        if len(suspicious) and self._try_alone(plan, suspicious):
            rest = self._again(plan)
            if not isinstance(rest, RuntimeError):
                yield from rest
                return
        self._try_alone(plan, self._quarantine.good(plan.ids))
        rest = self._again(plan)
        if isinstance(rest, RuntimeError):
            self._check_not_the_machine(rest)
            raise EngineError(
                "DALI failed twice on a batch whose samples pass one by one, the first of "
                f"them {self._job.index.path(int(plan.ids[0]))}: {rest}"
            ) from error
        yield from rest

    def _try_alone(self, plan: Plan, ids: Any) -> bool:
        """Run samples one by one and quarantine those that fail; whether there were any. Raises
        ShapeError where their sizes differ, EngineError where an image that is known to be good
        fails too.
        """
        shapes: list[Shapes] = []
        found = False
        for alone, outcome in self._each(
            replace(plan, ids=ids[i : i + 1]) for i in range(len(ids))
        ):
            if not isinstance(outcome, RuntimeError):
                shapes.append(
                    {
                        name: tuple(self._delivered(name, tensor).shape[1:])
                        for name, tensor in outcome.items()
                    }
                )
                continue
            found = True
            id = int(alone.ids[0])
            self._check_not_the_machine(outcome, id)
            self._known_good.check(str(outcome))
            self._quarantine.add(id, blame(self._job.index, id, str(outcome)))
        if not found:
            check_shapes(shapes, replace(plan, ids=ids), self._job)
        return found

    def _check_not_the_machine(self, error: RuntimeError, id: int | None = None) -> None:
        """Raise EngineError if an error is the machine's, or an operator's that takes no such
        numbers. id: of the sample that was run alone.
        """
        what = machine_failure(error)
        if not what and (refused := refused_dtype(str(error))):
            what = (
                f"an operator of DALI does not take what a step gave it: {refused.rstrip('.')}. "
                f"Write 'to_dtype: {{dtype: float32}}' before that step"
            )
        if what:
            raise EngineError(
                what if id is None else f"{what}. It happened at {self._job.index.path(id)}"
            ) from error

    def _each(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Outcome]]:
        """All plans, in as many runs as failures make of them."""
        while done := list(self._run(plans)):
            yield from done

    def _again(self, plan: Plan) -> list[tuple[Plan, Tensors]] | RuntimeError:
        """The good samples of a plan as one batch; nothing where none is left."""
        good = self._quarantine.good(plan.ids)
        if not len(good):
            self._quarantine.refuse_to_lose_a_step()
            return []
        rest = list(self._run([replace(plan, ids=good)]))
        failed = next((o for _, o in rest if isinstance(o, RuntimeError)), None)
        return failed or [(p, o) for p, o in rest if not isinstance(o, RuntimeError)]


def _inputs(
    job: LoadSpec, lowering: Lowering, mapped: dict[str, Maps]
) -> Callable[[Read], list[Any]]:
    """What the graph of a job is fed for a plan that was read. It holds nothing that holds it.

    It raises Missing, SampleIncompatible, StepError.
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


def _gone(pipe: Any) -> bool:
    """Whether a garbage collection that also got the engine took the pipeline down first."""
    return getattr(pipe, "_pipe", pipe) is None


def _close(engine: ref[DaliEngine], process: int) -> None:
    """At the end of the process, before DALI takes its pipelines down under an iteration that is
    still open.
    """
    alive = engine()
    if alive is not None and os.getpid() == process:
        alive.close()
