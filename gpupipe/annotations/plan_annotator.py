"""PlanAnnotator: moves the annotations of plans, those of several successive plans at once.

The work on a batch drops the code that moves annotations from the processor's caches, and each call
of NumPy takes as long for a few boxes as for a hundred. So it is done for several plans, before the
sizes of their images are read: by those that the index has. Where a file differs from its index,
the annotations of its batch are moved once more.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpupipe.annotations.batch_annotations import ORIG_SIZE, BatchAnnotations, Steps, prefix_of
from gpupipe.annotations.checks import is_affine
from gpupipe.annotations.rows import UPRIGHT, AnnotationRows, Orientations, find_orientations
from gpupipe.dataset.index import Index
from gpupipe.pipeline.annotations import Floats
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime.failures import is_foreign
from gpupipe.sampling.sampler import Plan
from gpupipe.sampling.siblings import Siblings

_MAX_ROWS = 512
"""The maximum number of samples of several plans whose annotations are moved at once. With more,
the threads of a machine with many cores would wait for the one that moves them."""


class PlanAnnotator:
    """Moves the annotations of plans through all steps.

    Args:
        index: The samples.
        pipeline: The steps, with annotations.
        draw: Returns the steps for a plan without annotations, by field and view.
    """

    def __init__(self, index: Index, pipeline: Pipeline, draw: Callable[[Plan], Steps]) -> None:
        self._index, self._pipeline, self._draw = index, pipeline, draw

    def annotate(
        self, plan: Plan, sizes: Mapping[str, Floats], orientations: Mapping[str, Orientations]
    ) -> BatchAnnotations:
        """Return the annotations of a plan after all steps; see `Job.annotate`."""
        pipeline = self._pipeline.at_epoch(plan.epoch)
        turned = find_orientations(pipeline, self._index.columns, plan.ids, orientations)
        annotations = self._annotate_as_declared(pipeline, plan)
        if annotations is None or not _is_as_declared(pipeline, annotations, sizes, turned):
            rows = AnnotationRows.of(self._index, pipeline, plan.ids)
            steps = self._draw(replace(plan, annotations=None))
            annotations = rows.annotate(pipeline, steps, sizes, turned)
        return annotations

    def _annotate_as_declared(self, pipeline: Pipeline, plan: Plan) -> BatchAnnotations | None:
        """Return a plan's part of the annotations of several plans, as the index has the sizes."""

        def annotate_all(siblings: Siblings) -> list[BatchAnnotations]:
            every = Plan(plan.epoch, siblings.ids, plan.end, False, repeats=siblings.repeats)
            rows = AnnotationRows.of(self._index, pipeline, every.ids)
            annotations = rows.annotate_as_declared(pipeline, self._draw(every))
            return annotations.split(siblings.bounds)

        if plan.siblings is None or not self._can_join:
            return None
        return plan.siblings.take(plan.number, self, "", annotate_all, _MAX_ROWS)

    @cached_property
    def _can_join(self) -> bool:
        """Whether the annotations of several plans may be moved at once.

        Not if a step of another package may look at all images of its batch, such as the largest;
        nor if a step takes long for each image, as elastic ones do.
        """
        steps = [entry.step for entry in self._pipeline.entries]
        is_own = not any(is_foreign(type(step)) or step.runs_unknown_code for step in steps)
        return is_own and is_affine(self._pipeline)


def _is_as_declared(
    pipeline: Pipeline,
    annotations: BatchAnnotations,
    sizes: Mapping[str, Floats],
    orientations: Mapping[str, NDArray[np.int64]],
) -> bool:
    """Return whether images are as `AnnotationRows.annotate_as_declared` took them to be.

    Args:
        pipeline: The steps.
        annotations: Its result for the batch.
        sizes: [height, width] of the decoded images, (B, 2), by field.
        orientations: The result of `find_orientations`.
    """
    return all((turned == UPRIGHT).all() for turned in orientations.values()) and all(
        (sizes[name] == annotations.values[prefix_of(pipeline, name) + ORIG_SIZE]).all()
        for name in pipeline.annotated
    )
