"""What passes between the DataLoader engine and its workers: a WorkItem, and its WorkResult.

A work item holds columns and drawn parameters, so a worker needs neither the index nor random
numbers. A Recipe tells the worker how to make each field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.annotations.batch_annotations import BatchAnnotations
from gpupipe.annotations.rows import AnnotationRows
from gpupipe.dataset.columns import Column
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.batch import DeliveryFormat
from gpupipe.errors import DataError, EngineError, StepError
from gpupipe.pipeline.entry import Entry
from gpupipe.runtime.failures import is_foreign

if TYPE_CHECKING:
    from torch import Tensor

    from gpupipe.engines.base import Job
    from gpupipe.sampling.sampler import Plan


@dataclass(frozen=True)
class WorkItem:
    """One batch of work for a worker.

    Attributes:
        columns: One column for each field of the pipeline, with a row for each sample of the batch.
        parameters: Drawn parameters of each field and view, as parameters[field][step][name]:
            arrays (B, ...).
        phase: The position in Pipeline.phases of the pipeline that makes the batch.
        annotations: The boxes and points of the samples; None if the data has none.
        opened: The image files that the worker has opened already, by field and row.
    """

    columns: list[Column]
    parameters: dict[str, list[dict[str, NDArray[Any]]]]
    phase: int = 0
    annotations: AnnotationRows | None = None
    opened: dict[tuple[str, int], EncodedImage] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, plan: Plan) -> WorkItem:
        """Return the work item of a plan. Raises StepError if the code of a step fails."""
        columns = [job.index.columns[name].take(plan.ids) for name in job.pipeline.fields]
        parameters = {
            name: [step.parameters for step in steps] for name, steps in job.steps_for(plan).items()
        }
        annotations = None
        if job.pipeline.annotations:
            annotations = AnnotationRows.of(job.index, job.pipeline, plan.ids)
        return cls(columns, parameters, job.pipeline.phase_of(plan.epoch), annotations)

    def select(self, rows: list[int]) -> WorkItem:
        """Return a work item with only the samples in some rows of the batch."""
        parameters = {
            name: [{n: v[rows] for n, v in p.items()} for p in of_field]
            for name, of_field in self.parameters.items()
        }
        columns = [column.take(np.array(rows, np.int64)) for column in self.columns]
        annotations = self.annotations and self.annotations.select(rows)
        opened = {
            (name, n): self.opened[name, row]
            for name in {name for name, _ in self.opened}
            for n, row in enumerate(rows)
            if (name, row) in self.opened
        }
        return WorkItem(columns, parameters, self.phase, annotations, opened)


@dataclass(frozen=True)
class Recipe:
    """How a worker makes one field.

    Attributes:
        name: Name of the field.
        steps: Steps to apply, in order; the first step of an image file decodes it. If an image
            file has no steps, its bytes are delivered.
        format: How the field is delivered.
        views: How to make each view of this field from the output of `steps`. If the field has
            views, they are delivered in its place.
    """

    name: str
    steps: list[Entry]
    format: DeliveryFormat
    views: tuple[Recipe, ...] = ()

    @property
    def outputs(self) -> tuple[Recipe, ...]:
        """The recipes whose outputs are delivered: the views, or this recipe if there are none."""
        return self.views or (self,)

    @property
    def runs_foreign_steps(self) -> bool:
        """Whether a step comes from another package. Such a step may change its input in place."""
        steps = (entry.step for recipe in (self, *self.views) for entry in recipe.steps)
        return any(is_foreign(type(step)) for step in steps)


def list_recipes(job: Job) -> list[Recipe]:
    """Return the recipe of each field of a job."""

    def create(name: str, views: tuple[Recipe, ...] = ()) -> Recipe:
        return Recipe(name, job.pipeline.entries_on(name), DeliveryFormat.of(job, name), views)

    return [
        create(name, tuple(create(view) for view in job.pipeline.views_of(name)))
        for name in job.pipeline.fields
    ]


@dataclass
class WorkResult:
    """What a worker returns for a WorkItem: the batch, and which samples failed.

    Attributes:
        fields: Tensors (B, ...) of the samples that did not fail. None if all samples failed, if
            their shapes differ, or if the Samples were created with `deliver=False`.
        failed: For each sample that failed: its position in the batch, and the reason.
        shapes: Shapes of the samples that did not fail, by field, if the shapes differ; else empty.
        error: An error that ends the iteration, because no sample caused it.
        row: The position in the batch of the sample at which the code of a step failed, if known.
        annotations: The boxes and points of the samples that did not fail; None without any.
    """

    fields: dict[str, Tensor] | None = None
    failed: list[tuple[int, str]] = field(default_factory=list)
    shapes: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    error: DataError | EngineError | StepError | None = None
    row: int | None = None
    annotations: BatchAnnotations | None = None

    def pin_memory(self) -> WorkResult:
        """Pin the tensors, and return the result; torch's pinning thread calls this."""
        if self.fields is not None:
            self.fields = {name: tensor.pin_memory() for name, tensor in self.fields.items()}
        return self
