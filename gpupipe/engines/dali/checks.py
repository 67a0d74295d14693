"""Whether the steps of other packages make in DALI what their spec says.

They are tried on a sample before the first batch; what is delivered is looked at in each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from nvidia.dali import types

from gpupipe.dataset.index import SpanColumn
from gpupipe.engines.bad_samples import telling_line
from gpupipe.engines.base import Batch, LoadSpec
from gpupipe.engines.dali.graph import Lowering
from gpupipe.engines.dali.mmap_reader import Maps
from gpupipe.engines.dali.reader import Read, reader
from gpupipe.errors import EngineError, StepError
from gpupipe.pipeline.pipeline import Entry, Pipeline
from gpupipe.pipeline.step import SampleIncompatible
from gpupipe.runtime.machine_failures import machine_failure
from gpupipe.runtime.plugins import is_foreign, step_failed, step_wrong
from gpupipe.sampling.sampler import Plan

Inputs = Callable[[LoadSpec, Lowering, dict[str, Maps]], Callable[[Read], list[Any]]]
_MOST_SAMPLES = 8
_ENOUGH_FAILURES = 3
"""What fails on so many samples that the steps before it took is the step's mistake."""


def check_steps(job: LoadSpec, device_id: int | None, inputs: Inputs) -> None:
    """Raises StepError where a step of another package makes what its spec does not say, or fails.

    inputs: what a graph is fed. It takes two small graphs for each such step.
    """
    for entry in job.pipeline.entries:
        if is_foreign(type(entry.step)):
            _check_step(job, entry, device_id, inputs)


def check_batch(job: LoadSpec, batch: Batch) -> None:
    """Raises StepError where a field with such steps has another shape or dtype than the last
    spec.
    """
    for name in job.pipeline.fields:
        foreign = [entry for entry in job.pipeline.on(name) if is_foreign(type(entry.step))]
        if not foreign:
            continue
        made, tensor = job.pipeline.made_of(name), batch[name]
        if name == job.pipeline.main and job.loader.dtype is not None:
            made = replace(made, dtype=job.loader.dtype)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if differs := made.differs_in(tuple(tensor.shape[1:]), dtype, made.layout):
            raise _wrong(
                foreign[-1], f"in a batch, '{name}' is {differs} behind it and all later steps"
            )


def _check_step(job: LoadSpec, entry: Entry, device_id: int | None, inputs: Inputs) -> None:
    steps = job.pipeline.on(entry.field)
    place = steps.index(entry)
    failures = 0
    for id in range(min(len(job.index), _MOST_SAMPLES)):
        if not entry.given.encoded and _fails(job, steps[:place], id, device_id, inputs):
            continue
        try:
            shape, dtype = _made(_beginning(job, steps[: place + 1]), id, device_id, inputs)
        except SampleIncompatible:
            continue
        except RuntimeError as e:
            if what := machine_failure(e):
                raise EngineError(what) from e
            failures += 1
            if failures < _ENOUGH_FAILURES or entry.given.encoded:
                continue
            telling = RuntimeError(telling_line(str(e)))
            raise step_failed(
                entry.key, type(entry.step), entry.where, "work in DALI", telling
            ) from e
        spec = (
            replace(entry.made, dtype="float32") if entry.made.dtype == "bfloat16" else entry.made
        )
        encoded = job.pipeline.fields[entry.field].encoded
        if differs := spec.differs_in(shape, dtype, "HWC" if encoded else spec.layout):
            raise _wrong(entry, f"its dali() made {differs}")
        return


def _wrong(entry: Entry, what: str) -> StepError:
    return step_wrong(entry.key, type(entry.step), entry.where, what)


def _fails(
    job: LoadSpec, steps: list[Entry], id: int, device_id: int | None, inputs: Inputs
) -> bool:
    """Whether a sample fails in steps that are not the one in question, or cannot be read."""
    try:
        _made(_beginning(job, steps), id, device_id, inputs)
    except RuntimeError:
        return True
    return False


def _beginning(job: LoadSpec, steps: list[Entry]) -> LoadSpec:
    """One sample of one field, with some steps."""
    fields = {steps[0].field: job.pipeline.fields[steps[0].field]}
    loader = job.loader.model_copy(update={"batch_size": 1, "prefetch": 1})
    return replace(
        job, pipeline=Pipeline(job.pipeline.name, tuple(steps), fields), loader=loader, threads=1
    )


def _made(
    job: LoadSpec, id: int, device_id: int | None, inputs: Inputs
) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of what the steps make of a sample.

    Raises RuntimeError, StepError, EngineError.
    """
    lowering = Lowering(job, "cpu" if device_id is None else "gpu", False, as_it_is=True)
    feed: list[Any] = []
    graph = lowering.graph(device_id, lambda: feed)
    columns = {name: job.index.columns[name] for name in job.pipeline.fields}
    maps = {
        name: Maps(job.index, name)
        for name, column in columns.items()
        if isinstance(column, SpanColumn)
    }
    files = reader(job, graph.decoding, maps, False)
    files.start([Plan(0, np.array([id]), 1, True)])
    read = next(files)
    if read.error is not None:
        raise read.error
    feed += inputs(job, lowering, maps)(read)
    (made,) = graph.pipe.run()
    return tuple(made.shape()[0]), np.dtype(types.to_numpy_type(made.dtype)).name
