"""Builds the DALI pipeline of a job from its lowering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvidia.dali import Pipeline, fn

from gpupipe.engines.base import Job
from gpupipe.engines.dali.lowering import FEED_TYPES, Arrays, Lowering
from gpupipe.errors import EngineError

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
    examples = lowering.example_arguments()
    loader = job.loader
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
            nodes = iter(_add_inputs(job, lowering, source, examples))
            data = {name: next(nodes) for name in job.pipeline.fields}
            _, outputs = lowering.lower(data, lambda _: next(nodes))
            pipe.set_outputs(*outputs)
        pipe.enable_api_check(False)
        pipe.build()
    except (RuntimeError, TypeError, ValueError) as e:
        raise EngineError(
            f"DALI cannot build pipeline '{job.pipeline.name}' on the {lowering.device}: {e}"
        ) from e
    return pipe


def _add_inputs(job: Job, lowering: Lowering, source: Source, examples: Arrays) -> Any:
    """Add one external source for all inputs: each field, and each per-sample argument."""
    fields = [lowering.graph_input(name) for name in job.pipeline.fields]
    dtypes = [*(dtype for dtype, _, _ in fields), *(FEED_TYPES[a.dtype] for a in examples)]
    ndims = [*(ndim for _, ndim, _ in fields), *(a.ndim - 1 for a in examples)]
    layouts = [*(layout for _, _, layout in fields), *([""] * len(examples))]
    return fn.external_source(
        source,
        num_outputs=len(dtypes),
        batch=True,
        dtype=dtypes,
        ndim=ndims,
        layout=layouts,
        no_copy=True,
    )
