"""The worker's side: an engine built from a Job, and the answers to tasks.

A worker keeps no state between tasks but its engine and which samples that engine skipped. So any
worker can make any batch, and makes the same one again.
"""

from __future__ import annotations

import os
import traceback
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.config import Shard
from gpupipe.engines import registry
from gpupipe.engines.bad_samples import list_skipped
from gpupipe.engines.base import Job
from gpupipe.engines.ray.arrays import PackedTensor, pack
from gpupipe.engines.ray.messages import BatchAnswer, PlanTask
from gpupipe.engines.ray.plan_stream import MadeBatch, Order, PlanStream
from gpupipe.errors import EngineError, GpupipeError
from gpupipe.runtime.registry import AUTO
from gpupipe.sampling.sampler import Plan


class BatchMaker:
    """Makes batches of a job, as NumPy arrays, on any machine that sees the data.

    It needs no Ray. Several threads may ask at once: the engine then works ahead.

    Args:
        job: The samples, the steps and the loader settings. The shard is ignored: plans say which
            samples to load.
        engine: The name of the engine, or "auto".
        device: "cpu", or "gpu:0" and so on.

    Raises:
        DeviceError: The device or the engine is not available.
        EngineError: The engine cannot run this job.

    Example:
        >>> with BatchMaker(Job(index, config.pipeline, config.loader, threads=2)) as maker:
        ...     for plan in sampler.begin():
        ...         maker.make(plan)["image"]  # uint8 (64, 3, 224, 224)
    """

    def __init__(self, job: Job, engine: str = AUTO, device: str = "cpu") -> None:
        self._job = job
        settings = {
            "shard": Shard(),
            "device": device,
            "engine": engine,
            "max_bad": 1.0,
            # The trainer lists them. A worker that is killed must leave no file.
            "quarantine": Path(os.devnull),
        }
        loader = job.loader.model_copy(update=settings)
        engine_type = registry.find_reader(engine, device, job.pipeline)
        self.engine = engine_type.on(replace(job, loader=loader), device)
        self._stream = PlanStream(self.engine)

    def make(self, plan: Plan) -> dict[str, NDArray[Any]]:
        """Return the batch of a plan: fields (B, ...), values of the index, "label" and "id".

        Samples that are skipped (`loader.on_error: skip`) are not in it. If all were skipped, the
        dict is empty.

        Raises:
            SampleError: A sample cannot be read or decoded, and `loader.on_error` is "raise".
            ShapeError: The samples differ in shape.
            EngineError: The engine or the machine failed.
        """
        made = self.submit(plan).result()
        if made is None or made.batch is None:
            return {}
        return {name: tensor.cpu().numpy() for name, tensor in made.batch.items()}

    def submit(self, plan: Plan, order: Order = (0, 0)) -> Future[MadeBatch | None]:
        """Start to make a batch; see PlanStream.submit."""
        return self._stream.submit(plan, order)

    def discard(self, order: Order) -> None:
        """Discard the plan of this order, if its batch is not begun."""
        self._stream.discard(order)

    def discard_before(self, run: int) -> None:
        """Discard the plans of earlier runs whose batches are not begun."""
        self._stream.discard_before(run)

    def pack_fields(self, made: MadeBatch) -> dict[str, PackedTensor]:
        """Return the fields of the pipeline as arrays, without labels, values and ids."""
        batch = made.batch or {}
        names = [name for name in self._job.pipeline.outputs if name in batch]
        return {name: pack(batch[name].cpu()) for name in names}

    def close(self) -> None:
        """End the engine. Idempotent."""
        self._stream.close()

    def __enter__(self) -> BatchMaker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class TaskRunner:
    """Answers the tasks of a trainer.

    Args:
        key: The content hash of the job. Tasks of other jobs are refused.
        maker: What makes the batches. The runner closes it.
    """

    def __init__(self, key: str, maker: BatchMaker) -> None:
        self._key, self._maker = key, maker

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return self._maker.engine.name

    def make(self, task: PlanTask) -> BatchAnswer | None:
        """Make the batch of a task; None if it was discarded."""
        if task.key != self._key:
            return BatchAnswer(error=EngineError(f"this worker has no job {task.key}"))
        try:
            made = self._maker.submit(task.to_plan(), (task.run, task.step)).result()
        except GpupipeError as e:
            return BatchAnswer(error=e)
        except Exception as e:
            return BatchAnswer(error=EngineError(repr(e)), trace=traceback.format_exc())
        return None if made is None else self._answer(task, made)

    def _answer(self, task: PlanTask, made: MadeBatch) -> BatchAnswer:
        fields = self._maker.pack_fields(made)
        if len(made.plan.ids) == len(task.ids):
            return BatchAnswer(fields)
        kept = np.flatnonzero(np.isin(task.ids, made.plan.ids))
        reasons = list_skipped(self._maker.engine)
        skipped = {int(id): reasons[int(id)] for id in np.setdiff1d(task.ids, made.plan.ids)}
        return BatchAnswer(fields, kept, skipped)

    def discard(self, order: Order) -> None:
        """Discard a task, if its batch is not begun."""
        self._maker.discard(order)

    def discard_before(self, run: int) -> None:
        """Discard the tasks of earlier runs whose batches are not begun."""
        self._maker.discard_before(run)

    def close(self) -> None:
        """End the engine. Idempotent."""
        self._maker.close()
