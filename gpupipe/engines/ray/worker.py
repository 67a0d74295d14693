"""The worker's side: an engine built from a Job makes the batches of plans.

    plan ─> BatchMaker ─> batch ─> pack ─> BatchAnswer ─> Ray's object store ─> unpack ─> trainer

An engine reads and decodes ahead on an iterator of plans. A worker gets its plans one by one, and
only while the trainer has room for more batches. So a thread passes all waiting plans to the
engine, the earliest first. If no plan waits, the thread ends the iterator, and the engine finishes
the batches that it has begun. So the engine never waits for a plan while the trainer waits for a
batch.

Between plans, a worker keeps only its engine and the list of skipped samples. So every worker makes
the same batch from a plan. This module needs no Ray.
"""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.annotations.batch_annotations import VALUES, list_arrays
from gpupipe.config import Shard
from gpupipe.engines import registry
from gpupipe.engines.bad_samples import list_skipped
from gpupipe.engines.base import Batch, Job
from gpupipe.engines.batch import SHAPES
from gpupipe.errors import TooManyBadError
from gpupipe.runtime.registry import AUTO
from gpupipe.sampling.sampler import Plan

Order = tuple[int, int]
"""(run, step): the number of the iteration, and the plan's position in it. Smaller comes first."""


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as a contiguous array.

    Attributes:
        array: The array, with its axes in the order of memory.
        axes: The axis of `array` that holds each axis of the tensor, for `torch.Tensor.permute`.
        dtype: Name of the tensor's dtype if NumPy has no such dtype, such as "bfloat16"; else None.
    """

    array: NDArray[Any]
    axes: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True)
class BatchAnswer:
    """A worker's answer to a plan: the batch, or the error.

    Attributes:
        fields: The output fields of the pipeline and their annotations, by name. Empty if all
            samples were skipped. The trainer adds the ids, labels and other values of the index.
        kept: Positions in `Plan.ids` of the samples in the batch, int64; None: all.
        skipped: The reason for each skipped sample, by the sample's row in the index.
        error: The exception because of which there is no batch, or None.
    """

    fields: dict[str, PackedTensor] = field(default_factory=dict)
    kept: NDArray[np.int64] | None = None
    skipped: dict[int, str] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def nbytes(self) -> int:
        """The size of the batch in bytes."""
        return sum(packed.array.nbytes for packed in self.fields.values())


def pack(tensor: torch.Tensor) -> PackedTensor:
    """Return a tensor as an array, which shares the tensor's memory if there are no gaps in it.

    Ray stores contiguous arrays without pickling them. So an array whose strides are permuted, such
    as images in channels_last, is sent with its axes in the order of memory.
    """
    dtype = None
    if tensor.dtype == torch.bfloat16:
        dtype, tensor = "bfloat16", tensor.view(torch.int16)
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    ordered = tensor.permute(order) if tensor.dim() else tensor
    if not ordered.is_contiguous():
        order, ordered = list(range(tensor.dim())), tensor.contiguous()
    axes = tuple(order.index(axis) for axis in range(tensor.dim()))
    return PackedTensor(ordered.numpy(), axes, dtype)


def unpack(packed: PackedTensor) -> torch.Tensor:
    """Return a writable tensor over the memory of an array.

    An array from the object store is read-only, because other processes may map the same object.
    Only one trainer reads an answer, so the tensor may be changed in place. The object store keeps
    the memory until the last tensor over it is freed.
    """
    array = packed.array
    tensor = torch.from_numpy(array if array.flags.writeable else _as_writable(array))
    tensor = tensor.permute(packed.axes) if packed.axes else tensor
    return tensor if packed.dtype is None else tensor.view(getattr(torch, packed.dtype))


def _as_writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return a writable array over the memory of a read-only array, and keep that array alive."""
    if not array.nbytes:
        return array.copy()
    memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory._owner = array  # type: ignore[attr-defined]
    block: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)
    return block.view(array.dtype).reshape(array.shape)


@dataclass(eq=False)
class _Task:
    """A plan whose batch is not made yet."""

    order: Order
    plan: Plan
    result: Future[tuple[Plan, Batch] | None] = field(default_factory=Future)


class BatchMaker:
    """Makes batches of a job on any machine that sees the data.

    Several threads may call `make` at once: the engine then works ahead.

    Args:
        job: The samples, the steps and the loader settings. The shard in the settings is ignored.
        engine: The name of the engine, or "auto".
        device: "cpu", or "gpu:0" and so on.

    Attributes:
        engine: The engine.

    Raises:
        DeviceError: The device or the engine is not available.
        EngineError: The engine cannot run this job.

    Examples:
        >>> maker = BatchMaker(Job(index, config.pipeline, config.loader, threads=2))
        >>> for plan in sampler.begin():
        ...     answer = maker.make(plan)
        ...     unpack(answer.fields["image"])  # uint8 (64, 3, 224, 224)
        >>> maker.close()
    """

    def __init__(self, job: Job, engine: str = AUTO, device: str = "cpu") -> None:
        settings = {
            "shard": Shard(),
            "device": device,
            "engine": engine,
            "max_bad": 1.0,
            # The trainer lists the bad samples. A worker that is killed must leave no file.
            "quarantine": Path(os.devnull),
        }
        loader = job.loader.model_copy(update=settings)
        engine_type = registry.find_reader(engine, device, job.pipeline)
        self.engine = engine_type.on(replace(job, loader=loader), device)
        fields = [name + end for name in job.pipeline.outputs for end in ("", VALUES, SHAPES)]
        self._outputs = *fields, *list_arrays(job.pipeline)
        self._changed = threading.Condition()
        self._waiting: list[_Task] = []
        """The tasks that the engine has not taken."""
        self._taken: deque[_Task] = deque()
        """The tasks that the engine has taken and not answered, in the order it took them."""
        self._newest_run = -1
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="gpupipe plans", daemon=True)
        self._thread.start()

    def make(self, plan: Plan, order: Order = (0, 0)) -> BatchAnswer | None:
        """Make the batch of a plan, and wait for it; None if the plan was discarded.

        The batch lacks the samples that the engine skips (`loader.on_error: skip`).

        Raises:
            SampleError: A sample cannot be read or decoded, and `loader.on_error` is "raise".
            ShapeError: The samples differ in shape.
            EngineError: The engine or the machine failed.
        """
        result = self.submit(plan, order).result()
        if result is None:
            return None
        delivered, batch = result
        fields = {name: pack(batch[name].cpu()) for name in self._outputs if name in batch}
        if len(delivered.ids) == len(plan.ids):
            return BatchAnswer(fields)
        reasons = list_skipped(self.engine)
        skipped = {int(id): reasons[int(id)] for id in np.setdiff1d(plan.ids, delivered.ids)}
        return BatchAnswer(fields, np.flatnonzero(np.isin(plan.ids, delivered.ids)), skipped)

    def submit(self, plan: Plan, order: Order = (0, 0)) -> Future[tuple[Plan, Batch] | None]:
        """Queue a plan. Plans of earlier runs that the engine has not taken yet are discarded.

        Args:
            plan: The plan.
            order: The engine takes the plan with the smallest order first; of equal ones, the
                oldest.

        Returns:
            A future of the plan without skipped samples, and of its batch. The batch is empty if
            all samples were skipped. The future's result is None if the plan was discarded.
        """
        task = _Task(order, plan)
        with self._changed:
            self.discard_before(order[0])
            if self._is_closed or order[0] < self._newest_run:
                task.result.set_result(None)
            else:
                self._waiting.append(task)
                self._changed.notify_all()
        return task.result

    def discard_before(self, run: int) -> None:
        """Discard the plans of earlier runs that the engine has not taken yet."""
        with self._changed:
            self._newest_run = max(self._newest_run, run)
            self._discard(lambda order: order[0] < run)

    def discard(self, order: Order) -> None:
        """Discard the plan of this order, if the engine has not taken it yet."""
        self._discard(lambda other: other == order)

    def close(self) -> None:
        """Finish the batches that the engine has begun, and close it. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._discard(lambda _: True)
            self._changed.notify_all()
        self._thread.join()
        self.engine.close()

    def _discard(self, is_unwanted: Callable[[Order], bool]) -> None:
        with self._changed:
            dropped = [task for task in self._waiting if is_unwanted(task.order)]
            self._waiting = [task for task in self._waiting if task not in dropped]
        for task in dropped:
            task.result.set_result(None)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
            try:
                # The trainer counts the bad samples of all workers, and enforces loader.max_bad.
                with (
                    suppress(TooManyBadError),
                    closing(self.engine.batches(self._take())) as batches,
                ):
                    for plan, batch in batches:
                        self._finish(plan, batch)
                        del batch  # its memory can be used again
                while self._taken:
                    self._finish_empty(self._taken.popleft())
            except Exception as e:
                self._fail(e)

    def _take(self) -> Iterator[Plan]:
        """Yield the waiting plans, until none waits. The engine may call this on any thread."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                task = self._pop_first()
                self._taken.append(task)
            yield replace(task.plan, tag=task)

    def _pop_first(self) -> _Task:
        task = min(self._waiting, key=lambda task: task.order)
        self._waiting.remove(task)
        return task

    def _finish(self, plan: Plan, batch: Batch) -> None:
        while (task := self._taken.popleft()) is not plan.tag:
            self._finish_empty(task)
        task.result.set_result((replace(plan, tag=task.plan.tag), batch))

    def _finish_empty(self, task: _Task) -> None:
        """Answer a task with an empty batch, because the engine skipped all its samples."""
        task.result.set_result((task.plan.select([]), {}))

    def _fail(self, error: Exception) -> None:
        """Answer the first open task with the error, and queue all other open tasks again."""
        with self._changed:
            if not (self._taken or self._waiting):
                return
            first = self._taken.popleft() if self._taken else self._pop_first()
            self._waiting = [*self._taken, *self._waiting]
            self._taken.clear()
        first.result.set_exception(error)
