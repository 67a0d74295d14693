"""The DALI engine: plans in, tensors out, on a GPU or on the CPU.

How it runs, and in which order it stops:

1. DALI asks a source for the next batch while it schedules: bytes that the Reader has read ahead, and the values of one plan for each
   argument that differs from sample to sample, `prefetch` plans ahead of what is delivered.
2. DALIGenericIterator hands a finished batch over through DLPack, without a copy; the tensor owns its memory from then on.
3. Labels and ids never enter DALI: they are known here, and become tensors directly.
4. A run that fails costs its batch. The source stops; what is in flight is collected, so that the order stays; the samples to blame are found by
   running suspects alone; the rest of the batch runs again; then the source goes on.
   What fails before the graph, being missing or no image, costs the same.
5. The plans go on over the end of an epoch. Closing the generator stops the source and drops what is in flight.
6. At the end of the process engines close before DALI's own exit handler, which is registered earlier, takes the pipelines down.
7. A forked child has none of DALI's threads, and a pipeline's destructor would wait for them: what is garbage there is left alone.
"""

from __future__ import annotations

import atexit
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
from numpy.typing import NDArray
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from gpupipe.devices import region_decode, resolve
from gpupipe.engines.base import Batch, Engine, Job, check_shapes
from gpupipe.engines.dali_graph import Device, build, values
from gpupipe.engines.dali_reader import Reader
from gpupipe.engines.heap import give_back
from gpupipe.engines.quarantine import Quarantine, reason, suspects
from gpupipe.errors import EngineError, counted
from gpupipe.sampler import Plan

Outcome = torch.Tensor | RuntimeError
os.register_at_fork(after_in_child=gc.freeze)
_EPOCHS_BETWEEN_TRIMS = 8
"""Faulting the memory in again costs 2 % of an epoch of 5,000 small images, so it is not given back after each."""


@dataclass(frozen=True)
class _Flying:
    """A plan on its way. `kept` is what DALI was given without a copy; `error` is why it never got as far as the graph."""

    plan: Plan
    kept: list[Any] | None = None
    error: RuntimeError | None = None


class _Source:
    """What DALI calls for the inputs of the next batch; `flight` are the plans that are taken and not delivered."""

    def __init__(self, values: Callable[[Plan, NDArray[np.float64]], list[NDArray[Any]]]) -> None:
        self._values = values
        self.reader: Reader
        self.flight: deque[_Flying] = deque()

    def __call__(self) -> list[Any]:
        """Raises StopIteration, which DALI takes for the end, where no plan is left."""
        while True:
            read = next(self.reader)
            try:
                if read.error is not None:
                    raise read.error
                assert read.size is not None
                kept = [read.data, *self._values(read.plan, read.size)]
            except RuntimeError as e:
                self.flight.append(_Flying(read.plan, error=e))
                self.reader.end()
                continue
            self.flight.append(_Flying(read.plan, kept))
            return kept


class DaliEngine(Engine):
    """Runs a job with DALI. device_id: the GPU's number, or None for the CPU back end; may_cut: whether its decoder may be asked for a part of an image."""

    name = "dali"

    def __init__(self, job: Job, device_id: int | None, may_cut: bool = True) -> None:
        self.device = "cpu" if device_id is None else f"gpu:{device_id}"
        self._torch_device = torch.device("cpu") if device_id is None else torch.device("cuda", device_id)
        self.crew = counted(job.threads, "thread")
        self._job = job
        self._quarantine = Quarantine(job)
        device: Device = "cpu" if device_id is None else "gpu"
        self._source = _Source(lambda plan, size: values(job, device, may_cut, plan, size))
        self._graph = build(job, device_id, may_cut, self._source)
        self._source.reader = Reader(job, self._graph.exif)
        self._ready: deque[tuple[Plan, Outcome]] = deque()
        self._iterator: Any = DALIGenericIterator([self._graph.pipe], ["image"], auto_reset=False, prepare_first_batch=False)
        self._fresh = True
        self._epochs = 0
        self._take: Callable[[], Any] = self._tensor
        self._at_exit = partial(_close, ref(self), os.getpid())
        atexit.register(self._at_exit)

    @classmethod
    def on(cls, job: Job, device: str) -> DaliEngine:
        number = resolve(device)
        return cls(job, number, number is None or region_decode(number))

    @property
    def skipped(self) -> int:
        return len(self._quarantine)

    @property
    def quarantine_file(self) -> str:
        return str(self._quarantine.file)

    def lowering(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return [("io.file.read", "cpu", ()), *((e.op, e.device, e.steps) for e in self._graph.emitted)]

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        self._quarantine.check()
        self._stop()
        self._quarantine.refusal = None
        more = True
        try:
            while more and self._quarantine.refusal is None:
                more = False
                for plan, outcome in self._run(self._quarantine.without_bad(plans)):
                    if not isinstance(outcome, torch.Tensor):
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
        self._source.reader.let_go(files)

    def close(self) -> None:
        atexit.unregister(self._at_exit)
        if self._iterator is not None:
            self._stop()
            del self._source.reader  # or it would wait for a garbage collection, since DALI's operators hold the source and one another
            self._iterator = self._graph = self._source = None  # type: ignore[assignment]  # a closed engine has none

    # --- running

    def _run(self, plans: Iterable[Plan]) -> Iterator[tuple[Plan, Outcome]]:
        """Put plans through an empty pipeline; a plan that fails comes back with the error. Those behind it are not harmed, but plans
        that were not taken yet then wait for the next run."""
        self._source.reader.start(plans)
        if not self._fresh:
            self._iterator.reset()
        self._fresh = False
        yield from self._results()

    def _results(self) -> Iterator[tuple[Plan, Outcome]]:
        while self._ready or self._advance():
            yield self._ready.popleft()

    def _advance(self) -> bool:
        """Wait for the next batch; it goes into `_ready`, behind the failures before it. False where there is nothing more."""
        flight = self._source.flight
        outcome: Outcome | None = None
        try:
            outcome = self._take()
        except StopIteration:
            pass
        except RuntimeError as e:
            outcome = e
            self._graph.pipe.schedule_run()
        while flight and (error := flight[0].error) is not None:
            self._ready.append((flight.popleft().plan, error))
        if outcome is not None:
            self._ready.append((flight.popleft().plan, outcome))
        return bool(self._ready)

    def _tensor(self) -> torch.Tensor:
        found: torch.Tensor = next(self._iterator)[0]["image"]
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
        if not self._fresh and self._iterator is not None and not (_gone(self._graph.pipe) or self._source.reader.gone):
            self._flush()

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
                    yield 0 if isinstance(outcome, RuntimeError) else len(plan.ids)
        finally:
            self._stop()
            self._take = self._tensor

    # --- delivering

    def _batch(self, plan: Plan, image: torch.Tensor) -> Batch:
        if self._job.loader.memory_format == "channels_last":
            image = image.permute(0, 3, 1, 2)
        if self._job.loader.dtype == "bfloat16":
            image = image.to(torch.bfloat16)
        labels = torch.from_numpy(self._job.index.labels[plan.ids])
        return {"image": image, "label": labels.to(self._torch_device), "id": torch.from_numpy(plan.ids).to(self._torch_device)}

    # --- failing

    def _repaired(self, late: list[tuple[Plan, Outcome]]) -> Iterator[tuple[Plan, Batch]]:
        """The batches of runs of which some failed, in order, without the samples to blame."""
        for plan, outcome in late:
            if isinstance(outcome, torch.Tensor):
                yield plan, self._batch(plan, outcome)
                continue
            for again, image in self._without_culprits(plan, outcome):
                yield again, self._batch(again, image)

    def _without_culprits(self, plan: Plan, error: RuntimeError) -> Iterator[tuple[Plan, torch.Tensor]]:
        """The batch of a plan that failed, run again without the samples that fail alone: suspects are tried first, then all."""
        suspicious = plan.ids[suspects(self._job.index.span(int(i)) for i in plan.ids)]
        if len(suspicious) and self._try_alone(plan, suspicious):
            rest = self._again(plan)
            if not isinstance(rest, RuntimeError):
                yield from rest
                return
        self._try_alone(plan, self._quarantine.good(plan.ids))
        rest = self._again(plan)
        if isinstance(rest, RuntimeError):
            raise EngineError(
                f"DALI failed twice on a batch whose samples pass one by one, the first of them {self._job.index.path(int(plan.ids[0]))}: {rest}"
            ) from error
        yield from rest

    def _try_alone(self, plan: Plan, ids: Any) -> bool:
        """Run samples one by one and quarantine those that fail; whether there were any. Raises ShapeError where their sizes differ."""
        shapes: list[tuple[int, ...]] = []
        found = False
        for alone, outcome in self._each(replace(plan, ids=ids[i : i + 1]) for i in range(len(ids))):
            if isinstance(outcome, torch.Tensor):
                shapes.append(self._height_width(outcome))
                continue
            found = True
            id = int(alone.ids[0])
            self._quarantine.add(id, reason(self._job.index.span(id), str(outcome)))
        if not found:
            check_shapes(shapes, replace(plan, ids=ids), self._job)
        return found

    def _each(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Outcome]]:
        """All plans, in as many runs as failures make of them."""
        while done := list(self._run(plans)):
            yield from done

    def _height_width(self, image: torch.Tensor) -> tuple[int, ...]:
        return tuple(image.shape[1:3] if self._job.loader.memory_format == "channels_last" else image.shape[2:4])

    def _again(self, plan: Plan) -> list[tuple[Plan, torch.Tensor]] | RuntimeError:
        """The good samples of a plan as one batch; nothing where none is left."""
        good = self._quarantine.good(plan.ids)
        if not len(good):
            self._quarantine.refuse_to_lose_a_step()
            return []
        rest = list(self._run([replace(plan, ids=good)]))
        failed = next((o for _, o in rest if isinstance(o, RuntimeError)), None)
        return failed or [(p, o) for p, o in rest if isinstance(o, torch.Tensor)]


def _gone(pipe: Any) -> bool:
    """Whether a garbage collection that also got the engine took the pipeline down first."""
    return getattr(pipe, "_pipe", pipe) is None


def _close(engine: ref[DaliEngine], process: int) -> None:
    """At the end of the process, before DALI takes its pipelines down under an iteration that is still open."""
    alive = engine()
    if alive is not None and os.getpid() == process:
        alive.close()
