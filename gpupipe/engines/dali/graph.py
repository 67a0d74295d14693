"""Runs plans through DALI's graph of a job, and hands over each batch or error in order.

    plans -> Reader -> GraphSource -> DALI's graph -> ready -> run()
                            |                           ^
                            +-------- in_flight --------+

DALI takes plans `prefetch` batches ahead. `in_flight` holds the plans that DALI took. `ready` holds
the batches and errors that `run` yields next.

Examples:
    With a prefetch of 2, plan 1 has a file that is no image. While plan 0 runs, the source reads
    plan 1, appends its error to `in_flight`, and takes no more plans. `run` yields

        (plan 0, {"image": tensor})
        (plan 1, RuntimeError(...))

    and ends. The caller repairs plan 1, and calls `run` again for plan 2 and those after it.

Invariants:
- `run` yields each plan that was taken, in order, as a batch or as an error. Only `stop` drops
  plans.
- DALI reads the buffers of a plan without a copy, so `in_flight` keeps them alive until the plan's
  batch is finished.
- After a failure no further plan is taken until the next `run`, but plans in flight still succeed.
- DALI ends the process if it frees memory of a GPU that has failed, as when a trainer's kernel read
  outside its array. So nothing calls DALI from then on, and its pipeline is never destroyed.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torch.utils.dlpack import from_dlpack

from gpupipe.annotations.batch_annotations import VALUES
from gpupipe.engines.batch import SHAPES, flatten
from gpupipe.engines.dali.field_readers import FieldReader
from gpupipe.engines.dali.lowering import Lowering, build_graph
from gpupipe.engines.dali.reader import Read, Reader, find_sizes, was_destroyed
from gpupipe.errors import EngineError, StepError
from gpupipe.runtime import tracing
from gpupipe.runtime.failures import gpu_failure, keep_if_gpu_failed
from gpupipe.sampling.sampler import Plan

Tensors = dict[str, torch.Tensor]
Outcome = Tensors | RuntimeError


class GraphSource:
    """Returns the inputs of the next batch to DALI, as the callback of its external source.

    Args:
        lowering: The lowering of the job's steps.
        reader: Reads the files of the plans.
        fields: The readers of the fields that DALI does not read itself, by field name.

    Attributes:
        in_flight: The plans taken from the reader and not delivered yet, in order. Each Read holds
            the buffers that DALI uses without a copy, or the error of a plan that never entered
            the graph.
    """

    def __init__(
        self, lowering: Lowering, reader: Reader, fields: Mapping[str, FieldReader]
    ) -> None:
        self._lowering, self._reader, self._fields = lowering, reader, fields
        self.in_flight: deque[Read] = deque()

    def __call__(self) -> list[Any]:
        """Return the next plan's inputs. After the last plan, raise StopIteration: DALI's run ends.

        If reading a plan or computing its inputs fails, tell the reader to take no more plans, so
        that the batches in flight can be collected.
        """
        while True:
            with tracing.span("read", "loader"):
                read = next(self._reader)
            try:
                if read.error is not None:
                    raise read.error
                with tracing.span("compute parameters", "loader"):
                    plan, inputs = compute_inputs(self._lowering, self._fields, read)
            except (RuntimeError, StepError, EngineError) as e:
                self.in_flight.append(Read(read.plan, error=e))
                self._reader.end()
                continue
            tracing.begin("batch in flight", f"{read.plan.epoch}:{read.plan.end}")
            self.in_flight.append(replace(read, plan=plan, buffers=[read, inputs]))
            return inputs


def compute_inputs(
    lowering: Lowering, fields: Mapping[str, FieldReader], read: Read
) -> tuple[Plan, list[Any]]:
    """Return the plan with its annotations, and its inputs: the data of each field, the arguments.

    The arguments are the arrays that Lowering.arguments returns.

    Raises:
        CannotReadError: An array cannot be read.
        SampleIncompatibleError: A step cannot handle one of the samples.
        StepError: A plugin step failed.
    """
    data = [
        read.data[name] if spec.encoded else fields[name].read_arrays(read.plan.ids)
        for name, spec in lowering.job.pipeline.fields.items()
    ]
    found = find_sizes(lowering.job, read)
    plan = lowering.job.annotate(read.plan, found, read.orientation)
    return plan, [*data, *lowering.arguments(plan, found)]


class GraphRunner:
    """Builds the graph of a job, and runs plans through it.

    Args:
        lowering: The lowering of the job's steps.
        device_id: The GPU's number, or None for the CPU.
        reader: Reads the files of the plans.
        fields: The readers of the fields that DALI does not read itself, by field name.
        warm_up: The minimum number of samples in the first batch that DALI decodes. If the first
            plan has fewer, a batch that repeats its samples runs first and is dropped. 0 for no
            minimum.
    """

    def __init__(
        self,
        lowering: Lowering,
        device_id: int | None,
        reader: Reader,
        fields: Mapping[str, FieldReader],
        warm_up: int = 0,
    ) -> None:
        self._source, self._reader = GraphSource(lowering, reader, fields), reader
        self._device_id = device_id
        self._pipe = build_graph(lowering, device_id, self._source)
        names = list(lowering.job.pipeline.outputs)
        self._iterator: Any = DALIGenericIterator(
            [self._pipe], names, auto_reset=False, prepare_first_batch=False
        )
        self._ready: deque[tuple[Plan, Outcome | StepError | EngineError]] = deque()
        self._warm_up = warm_up
        self._is_fresh = True
        self._is_delivering = True
        self._may_differ = lowering.job.loader.shapes != "equal"
        self._names = names

    def run(self, plans: Iterable[Plan]) -> Iterator[tuple[Plan, Outcome]]:
        """Run plans, and yield each plan with its tensors or its error.

        Call it only while no batch is in flight. After an error, no more plans are taken, but those
        in flight still run. The rest remain in `plans`, for the next call.
        """
        self._reader.start(self._with_warm_up(plans))
        if not self._is_fresh:
            self._iterator.reset()
        self._is_fresh = False
        yield from self._outcomes()

    def run_undelivered(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Outcome], None, None]:
        """Run all plans; yield each with its error, or with DALI's outputs instead of tensors.

        The images of such a batch may differ in size. After an error, another run takes the
        remaining plans.
        """
        self._is_delivering = False
        try:
            for first in plans:
                yield from self.run(chain([first], plans))
        finally:
            self.stop()
            self._is_delivering = True

    def run_all(self, plans: Iterator[Plan]) -> Iterator[tuple[Plan, Outcome]]:
        """Run all plans; yield each with its tensors or its error.

        After an error, another run takes the remaining plans.
        """
        while outcomes := list(self.run(plans)):
            yield from outcomes

    def flush(self) -> list[tuple[Plan, Outcome]]:
        """Take no more plans; wait for those in flight, and return them with tensors or errors."""
        self._reader.end()
        return list(self._outcomes())

    def stop(self) -> None:
        """Take no more plans; wait for the batches in flight, and drop them."""
        if gpu_failure(self._device_id):
            return
        if not (self._is_fresh or was_destroyed(self._pipe) or self._reader.was_destroyed):
            self._reader.drop()
            while self._ready or self._advance():
                self._ready.clear()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._pipe is None

    def close(self) -> None:
        """Release DALI's pipeline. Idempotent."""
        keep_if_gpu_failed(self._device_id, self._iterator, self._pipe)
        self._iterator = self._pipe = None

    def _with_warm_up(self, plans: Iterable[Plan]) -> Iterator[Plan]:
        """Return `plans`. If DALI's first batch would be short, run and drop a longer one first.

        The size of the first decoded batch sets the hardware decoder's share of all later batches.
        So if no batch of at least `_warm_up` samples has passed yet, and the first plan has fewer
        samples, a batch of `_warm_up` samples that repeats these samples runs first. If that batch
        fails, its error is dropped: the first plan has the same samples, and fails too.
        """
        plans, size = iter(plans), self._warm_up
        if not size or (first := next(plans, None)) is None:
            return plans
        if len(first.ids) < size:
            for _ in self.run([first.select(np.arange(size) % len(first.ids))]):
                pass
        return chain([first], plans)

    def _outcomes(self) -> Iterator[tuple[Plan, Outcome]]:
        while self._ready or self._advance():
            plan, outcome = self._ready.popleft()
            if isinstance(outcome, StepError | EngineError):
                raise outcome
            yield plan, outcome

    def _advance(self) -> bool:
        """Wait for DALI's next batch. Append it to `_ready`, after the plans that failed before it.

        Return False if `_ready` is still empty: no batch is left.

        Raises:
            EngineError: The GPU has failed.
        """
        if failure := gpu_failure(self._device_id):
            raise EngineError(failure)
        in_flight = self._source.in_flight
        outcome: Outcome | StepError | EngineError | None = None
        try:
            with tracing.span("DALI graph", "operator"):
                outcome = self._next_outputs()
        except StopIteration:
            pass
        except RuntimeError as e:
            if not in_flight:  # no plan's error: a GPU that has failed fails at everything
                raise
            outcome = e
            self._pipe.schedule_run()
        while in_flight and (error := in_flight[0].error) is not None:
            self._ready.append((in_flight.popleft().plan, error))
        if outcome is not None:
            plan = in_flight.popleft().plan
            tracing.end("batch in flight", f"{plan.epoch}:{plan.end}")
            if not isinstance(outcome, Exception) and len(plan.ids) >= self._warm_up:
                self._warm_up = 0
            self._ready.append((plan, outcome))
        return bool(self._ready)

    def _next_outputs(self) -> Any:
        """Return the next batch: tensors (B, ...) or the elements of unequal samples, by name.

        While nothing is delivered, return DALI's outputs unchanged.
        """
        if self._is_delivering and not self._may_differ:
            return next(self._iterator)[0]
        if self._pipe.empty():
            self._pipe.schedule_run()
        outputs = self._pipe.share_outputs()
        if self._is_delivering:
            outputs = _flatten_outputs(self._names, outputs)
        self._pipe.release_outputs()
        self._pipe.schedule_run()
        return outputs


def _flatten_outputs(names: Sequence[str], outputs: Sequence[Any]) -> Tensors:
    """Copy DALI's outputs, whose samples differ in size: their elements and their shapes."""
    tensors = {}
    for name, output in zip(names, outputs, strict=True):
        samples = [from_dlpack(output[n]) for n in range(len(output))]
        tensors[name + VALUES] = values = flatten(samples)
        tensors[name + SHAPES] = torch.tensor([sample.shape for sample in samples])
        if values.is_cuda:  # DALI reuses its memory once the outputs are released
            torch.cuda.current_stream(values.device).synchronize()
    return tensors
