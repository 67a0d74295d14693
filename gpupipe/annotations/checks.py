"""Checks of a pipeline's annotations before any sample is read."""

from contextlib import suppress

import numpy as np

from gpupipe.annotations.batch_annotations import (
    TO_ORIGINAL,
    BatchAnnotations,
    ImmovableError,
    annotate,
)
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.spec import Spec
from gpupipe.errors import Problem
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import SampleIncompatibleError

_MAX_TRIES = 100
_EXAMPLE_SIZE = (4096, 4096)


def find_immovable(pipeline: Pipeline) -> Problem | None:
    """Return the first step that may move pixels in a way that annotations cannot follow, or None.

    The pipeline must have annotations.
    """
    try:
        _annotate_example(pipeline)
    except ImmovableError as e:
        return e.problem
    return None


def is_affine(pipeline: Pipeline) -> bool:
    """Return whether matrices describe how the steps move annotations.

    The pipeline must have annotations.
    """
    example = _annotate_example(pipeline)
    return example is not None and any(name.endswith(TO_ORIGINAL) for name in example.values)


def describe_values(pipeline: Pipeline) -> list[str]:
    """Return name, dtype and shape of each array (B, ...) that comes with annotations.

    Args:
        pipeline: A pipeline with annotations that can follow all of its steps.
    """
    example = _annotate_example(pipeline)
    return [
        f"{name} {values.dtype} ({', '.join(['B', *map(str, values.shape[1:])])})"
        for name, values in (example.values.items() if example else ())
    ]


def _annotate_example(pipeline: Pipeline) -> BatchAnnotations | None:
    """Run all steps on a made-up sample without boxes and points.

    Return None if they refuse it, whatever they draw.

    Raises:
        ImmovableError: A step may move pixels in a way that annotations cannot follow.
    """
    none = np.zeros(2, np.int64)
    pairs = [p for spec in pipeline.annotations.values() for p in _flip_pairs(spec)]
    points = 1 + max((max(pair) for pair in pairs), default=0)
    columns = {}
    for name, spec in pipeline.annotations.items():
        assert spec.annotation is not None
        rows_with = spec.annotation.rows_with
        values = np.zeros((0, *(size or points for size in spec.shape[1:])), spec.dtype)
        of = spec.annotation.of
        columns[name] = AnnotationColumn(
            spec.kind, of, rows_with, values, None if rows_with else none
        )
    sizes = {
        name: np.array([spec.size or _EXAMPLE_SIZE], np.float64)
        for name, spec in pipeline.fields.items()
    }
    upright = {name: np.ones(1, np.int64) for name in pipeline.fields}
    for number in range(_MAX_TRIES):
        ids = np.array([number])
        steps = {
            name: [(entry, entry.parameters(0, 0, ids)) for entry in pipeline.entries_on(name)]
            for name in (*pipeline.fields, *pipeline.views)
        }
        with suppress(SampleIncompatibleError):
            return annotate(pipeline, columns, steps, sizes, upright, {})
    return None


def _flip_pairs(spec: Spec) -> tuple[tuple[int, int], ...]:
    return spec.annotation.flip_pairs if spec.annotation else ()
