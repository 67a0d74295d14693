"""What goes between a trainer and its workers: tasks and answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.ray.arrays import PackedTensor
from gpupipe.sampling.sampler import Plan


@dataclass(frozen=True)
class PlanTask:
    """The work of one batch: a few kB.

    Attributes:
        key: The content hash of the job, which the worker got before.
        run: The number of the iteration that asks. A worker drops the tasks of earlier ones.
        step: The position of the plan in that iteration.
        epoch: The epoch.
        ids: Rows of the index, int64 (B,).
        last: Whether the batch ends the epoch.
        repeats: As in Plan.
    """

    key: str
    run: int
    step: int
    epoch: int
    ids: NDArray[np.int64]
    last: bool
    repeats: NDArray[np.int64] | None = None

    def to_plan(self) -> Plan:
        """Return the plan, without the position in the epoch, which only the trainer needs."""
        return Plan(self.epoch, self.ids, 0, self.last, repeats=self.repeats)


@dataclass(frozen=True)
class BatchAnswer:
    """The batch of a task, or why there is none.

    Attributes:
        fields: The fields of the pipeline, by name. Empty if all samples were skipped.
        kept: Positions in the task's ids of the samples that the batch has; None: all.
        skipped: Why each other sample was skipped, by its row in the index.
        error: The exception that ended the worker's iteration, or None.
        trace: The traceback of an error that is no GpupipeError.
    """

    fields: dict[str, PackedTensor] = field(default_factory=dict)
    kept: NDArray[np.int64] | None = None
    skipped: dict[int, str] = field(default_factory=dict)
    error: Exception | None = None
    trace: str = ""

    @property
    def nbytes(self) -> int:
        """The size of the batch."""
        return sum(packed.array.nbytes for packed in self.fields.values())


@dataclass(frozen=True)
class BuildAnswer:
    """Whether a worker could build its engine.

    Attributes:
        engine: The name of the engine.
        error: Why it could not, or None.
        missing: Paths that it does not see.
    """

    engine: str = ""
    error: Exception | None = None
    missing: tuple[str, ...] = ()
