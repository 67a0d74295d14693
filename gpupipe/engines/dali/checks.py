"""Checks of a job before its first batch, and of each batch.

`check_affinity`: DALI can bind its CPU threads to cores. It takes the cores from
DALI_AFFINITY_MASK, which lists one core number for each thread. Without the mask it asks NVML for
the cores near the GPU. Without a mask and a GPU it binds nothing, since it does not query NVML then
(nvml.cc of DALI 2.4). The threads of the GPU's image decoder are bound in any case.

`check_steps` and `check_batch`: the output of a step must match the step's spec. Both check only
plugins (steps of other packages), and steps that run code unknown to gpupipe, such as `dali`.
`check_steps` runs each such step on a sample before the first batch. `check_batch` checks the shape
and dtype of each delivered batch.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from nvidia.dali import types

from gpupipe.annotations.batch_annotations import VALUES
from gpupipe.config import LoaderConfig
from gpupipe.dataset.index import build_empty
from gpupipe.engines.bad_samples import find_cause
from gpupipe.engines.base import Batch, Job
from gpupipe.engines.batch import SHAPES
from gpupipe.engines.dali.field_readers import open_fields
from gpupipe.engines.dali.graph import compute_inputs
from gpupipe.engines.dali.lowering import Lowering, build_graph
from gpupipe.engines.dali.operators.ops import Device
from gpupipe.engines.dali.reader import make_reader
from gpupipe.errors import DeviceError, EngineError
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.runtime.failures import is_foreign, machine_failure, step_failed
from gpupipe.sampling.sampler import Plan

_MAX_SAMPLES = 8
_ENOUGH_FAILURES = 3
"""A step is to blame if it fails on this many samples that passed all steps before it."""
_MASK = "DALI_AFFINITY_MASK"


def check_affinity(threads: int, device_id: int | None) -> None:
    """Raise DeviceError if DALI cannot bind its threads to cores.

    Args:
        threads: How many CPU threads DALI runs.
        device_id: The GPU's number, or None for the CPU.
    """
    mask = os.environ.get(_MASK)
    if mask is None:
        if device_id is None:
            raise DeviceError(
                "loader.set_affinity=true binds DALI's threads to the cores near a GPU, "
                "and this runs on the CPU: "
                f"set {_MASK} to the numbers of {threads} cores, as in 0,1, or leave out "
                "set_affinity"
            )
        return
    if not re.fullmatch(r"\d+(,\d+)*", mask):
        raise DeviceError(
            f"{_MASK}={mask!r} should be numbers of cores with commas between them, as in 0,1"
        )
    cores = mask.split(",")
    if len(cores) < threads:
        raise DeviceError(
            f"{_MASK}={mask} has {len(cores)} cores, and DALI runs {threads} threads: "
            f"name one for each, or set loader.threads={len(cores)}"
        )
    usable = os.sched_getaffinity(0)
    unusable = [n for n in cores[:threads] if int(n) not in usable]
    if unusable:
        raise DeviceError(
            f"{_MASK}={mask} names core {unusable[0]}, which this process may not use: it may "
            f"use {', '.join(map(str, sorted(usable)))}"
        )


def can_lower(entry: Entry, device: Device) -> bool:
    """Return whether a step has DALI operators on a device. Needs no GPU, even for "gpu"."""
    pipeline = Pipeline("", (entry,), {entry.field: entry.input_spec})
    job = Job(build_empty(), pipeline, LoaderConfig(), 1)
    try:
        Lowering(job, device, True).inputs()  # traces the step
    except EngineError:
        return False
    return True


def check_steps(phases: Sequence[Job], device_id: int | None) -> None:
    """Raise StepError if a plugin step fails, or its output differs from its spec.

    A plugin step is a step of another package, or one that runs code unknown to gpupipe. The check
    builds one or two small DALI graphs for each sample on which it tries such a step.
    A step that is the same in several phases is checked once.

    Args:
        phases: The job in each phase of its schedules.
        device_id: The GPU's number, or None for the CPU.

    Raises:
        StepError: A plugin step is faulty.
        EngineError: The machine failed during the check.
    """
    checked: list[Entry] = []
    for job in phases:
        for entry in job.pipeline.entries:
            if _must_check(entry) and entry not in checked:
                _check_step(job, entry, device_id)
                checked.append(entry)


def check_batch(job: Job, batch: Batch) -> None:
    """Raise StepError if a field with plugin steps differs from the output spec of its last step.

    Plugin steps are steps of other packages, and those that run code unknown to gpupipe. Only the
    shape and the dtype are checked.
    """
    pipeline = job.pipeline
    for name in pipeline.outputs:
        names = pipeline.source_of(name), name
        foreign = [e for n in names for e in pipeline.entries_on(n) if _must_check(e)]
        if not foreign:
            continue
        spec, shapes = pipeline.output_spec_of(name), batch.get(name + SHAPES)
        tensor = batch[name] if shapes is None else batch[name + VALUES]
        every = [tensor.shape[1:]] if shapes is None else torch.unique(shapes, dim=0).tolist()
        if name in pipeline.main_outputs and job.loader.dtype is not None:
            spec = replace(spec, dtype=job.loader.dtype)
        dtype = str(tensor.dtype).removeprefix("torch.")
        wrong = (spec.describe_mismatch_in(tuple(shape), dtype, spec.layout) for shape in every)
        if differs := next(filter(None, wrong), ""):
            raise foreign[-1].wrong(
                f"in a batch, '{name}' is {differs} after it and all later steps"
            )


def _must_check(entry: Entry) -> bool:
    return is_foreign(type(entry.step)) or entry.step.runs_unknown_code


def _check_step(job: Job, entry: Entry, device_id: int | None) -> None:
    source = job.pipeline.source_of(entry.field)
    steps = [e for e in job.pipeline.entries if e.field in (source, entry.field)]
    position = steps.index(entry)
    failures = 0
    for id in job.index.ids_of(np.arange(min(len(job.index), _MAX_SAMPLES))).tolist():
        if not entry.input_spec.encoded:
            try:
                _run_one(job, steps[:position], id, device_id)
            except RuntimeError:  # it cannot be read, or fails before the step under test
                continue
        try:
            shape, dtype = _run_one(job, steps[: position + 1], id, device_id)
        except SampleIncompatibleError:
            continue
        except RuntimeError as e:
            if failure := machine_failure(e):
                raise EngineError(failure) from e
            failures += 1
            if failures < _ENOUGH_FAILURES or entry.input_spec.encoded:
                continue
            cause, step = RuntimeError(find_cause(str(e))), type(entry.step)
            raise step_failed(entry.key, step, entry.where, "work in DALI", cause) from e
        spec = entry.output_spec
        if spec.dtype == "bfloat16":
            spec = replace(spec, dtype="float32")
        encoded = job.pipeline.is_image_file(entry.field)
        if differs := spec.describe_mismatch_in(shape, dtype, "HWC" if encoded else spec.layout):
            raise entry.wrong(f"its lower() made {differs}")
        return


def _run_one(
    job: Job, steps: list[Entry], id: int, device_id: int | None
) -> tuple[tuple[int, ...], str]:
    """Run `steps` of one field or view on one sample; return the shape and dtype of the output.

    Raises RuntimeError, StepError or EngineError if the sample cannot be read, or a step fails.
    """
    source, last = job.pipeline.source_of(steps[0].field), steps[-1].field
    fields = {source: job.pipeline.fields[source]}
    views = {last: source} if last != source else {}
    loader = job.loader.model_copy(update={"batch_size": 1, "prefetch": 1})
    pipeline = Pipeline(job.pipeline.name, tuple(steps), fields, views)
    job = replace(job, pipeline=pipeline, loader=loader, threads=1)
    lowering = Lowering(job, "cpu" if device_id is None else "gpu", False, as_it_is=True)
    readers = open_fields(job)
    reader = make_reader(lowering, readers, False)
    feed: list[Any] = []
    pipe = build_graph(lowering, device_id, lambda: feed)
    reader.start([Plan(0, np.array([id]), 1, True)])
    read = next(reader)
    if read.error is not None:
        raise read.error
    feed += compute_inputs(lowering, readers, read)[1]
    (output,) = pipe.run()
    return tuple(output.shape()[0]), np.dtype(types.to_numpy_type(output.dtype)).name
