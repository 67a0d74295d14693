"""Builds the DALI graph of a job, and computes the inputs of the graph for each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nvidia.dali import Pipeline, fn

from gpupipe.engines.base import Job
from gpupipe.engines.dali.field_readers import FieldReader
from gpupipe.engines.dali.lowering import Lowering, Sizes
from gpupipe.engines.dali.operators.array import sizes
from gpupipe.engines.dali.reader import Read, Reader
from gpupipe.errors import EngineError, StepError
from gpupipe.runtime import tracing

Source = Callable[[], list[Any]]


def build_graph(job: Job, lowering: Lowering, device_id: int | None, source: Source) -> Any:
    """Build the DALI pipeline that runs the steps of a job.

    Args:
        job: The job.
        lowering: The lowering of its steps.
        device_id: The GPU's number, or None for the CPU.
        source: DALI calls it for the inputs of each batch: the data of each field, then the
            arrays of Lowering.arguments. DALI does not copy them, so `source` must keep them
            alive until the batch is delivered.

    Returns:
        The built nvidia.dali.Pipeline. Its outputs are the fields, in order.

    Raises:
        EngineError: DALI cannot build the pipeline.
    """
    inputs, loader = lowering.inputs(), job.loader
    try:
        pipe: Any = Pipeline(
            batch_size=loader.batch_size,
            num_threads=job.threads,
            device_id=device_id,
            prefetch_queue_depth=loader.prefetch,
            set_affinity=loader.set_affinity,
            exec_dynamic=True,
        )
        with pipe:
            dtypes, ndims, layouts = map(list, zip(*inputs, strict=True))
            nodes = fn.external_source(
                source,
                num_outputs=len(inputs),
                batch=True,
                dtype=dtypes,
                ndim=ndims,
                layout=layouts,
                no_copy=True,
            )
            pipe.set_outputs(*lowering.add_to_graph(nodes))
        pipe.enable_api_check(False)
        pipe.build()
    except (RuntimeError, TypeError, ValueError) as e:
        raise EngineError(
            f"DALI cannot build pipeline '{job.pipeline.name}' on the {lowering.device}: {e}"
        ) from e
    return pipe


class GraphSource:
    """The callback of DALI's external source, which returns the inputs of the next batch.

    Args:
        job: The job.
        lowering: The lowering of its steps.
        reader: Reads the files of the plans.
        fields: The readers of the fields that DALI does not read itself, by field name.

    Attributes:
        in_flight: The plans taken from the reader and not delivered yet, in order. Each Read holds
            the buffers that DALI uses without a copy, or the error that kept it out of the graph.
    """

    def __init__(
        self, job: Job, lowering: Lowering, reader: Reader, fields: Mapping[str, FieldReader]
    ) -> None:
        self._job, self._lowering, self._reader, self._fields = job, lowering, reader, fields
        self.in_flight: deque[Read] = deque()

    def __call__(self) -> list[Any]:
        """Return the next inputs. After the last plan, raise StopIteration to end DALI's run.

        A plan that fails here stops the reader, so that the batches in flight can be collected.
        """
        while True:
            with tracing.span("read", "loader"):
                read = next(self._reader)
            try:
                if read.error is not None:
                    raise read.error
                with tracing.span("compute parameters", "loader"):
                    inputs = compute_inputs(self._job, self._lowering, self._fields, read)
            except (RuntimeError, StepError, EngineError) as e:
                self.in_flight.append(Read(read.plan, error=e))
                self._reader.end()
                continue
            tracing.begin("batch in flight", f"{read.plan.epoch}:{read.plan.end}")
            self.in_flight.append(replace(read, buffers=[read, inputs]))
            return inputs


def compute_inputs(
    job: Job, lowering: Lowering, fields: Mapping[str, FieldReader], read: Read
) -> list[Any]:
    """Return the inputs of the graph for a plan: the data of each field, then the arguments.

    Raises:
        CannotReadError: An array cannot be read.
        SampleIncompatibleError: A step cannot handle one of the samples.
        StepError: A plugin step failed.
    """
    data = [
        read.data[name] if spec.encoded else fields[name].read_arrays(read.plan.ids)
        for name, spec in job.pipeline.fields.items()
    ]
    return [*data, *lowering.arguments(read.plan, find_sizes(job, read))]


def find_sizes(job: Job, read: Read) -> Sizes:
    """Return the sizes of a plan's samples: of images from headers, of arrays from the index."""
    arrays = [name for name, spec in job.pipeline.fields.items() if not spec.encoded]
    return read.size | {name: sizes(job, name, read.plan.ids) for name in arrays}
