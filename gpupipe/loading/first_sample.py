"""Runs the first sample of a data set through the steps, before an engine starts."""

import os
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpupipe.config import Shard
from gpupipe.engines import registry
from gpupipe.engines.base import Job
from gpupipe.errors import GpupipeError, StepError
from gpupipe.runtime.function_draws import check_draws
from gpupipe.sampling.sampler import Plan

_ALONE = {
    "shard": Shard(),
    "device": "cpu",
    "workers": 0,
    "batch_size": 1,
    "on_error": "skip",
    "max_bad": 1.0,
    "quarantine": Path(os.devnull),
}


def check_first_sample(job: Job) -> None:
    """Run the first sample through the steps, if one of them calls functions of the user's.

    Each function is called twice: see `check_draws`.

    Raises:
        StepError: A function fails, returns other than it says, or draws from global generators.
    """
    if not len(job.index) or not any(e.step.calls_user_code for e in job.pipeline.entries):
        return
    settings = job.loader.model_copy(update=_ALONE)
    plan = Plan(0, job.index.ids_of(np.zeros(1, np.int64)), 1, True)
    try:
        engine = registry.find_reference().on(
            replace(job, loader=settings, cache_decoded=None), "cpu"
        )
        with closing(engine), check_draws(), suppress(StopIteration):
            next(iter(engine.batches(iter([plan]))))
    except StepError:
        raise
    except GpupipeError:
        return  # the sample cannot be read: the run says so when it comes to it
