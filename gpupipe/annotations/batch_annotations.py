"""The annotations of a batch: moved through the steps of their images before pixels are read.

AnnotationColumn rows ─┐
sizes of the images ───┼─> annotate() ─> BatchAnnotations ─> boxes.values, boxes.offsets, ...
drawn steps ───────────┘                        └─> parameters that the steps decided
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.annotations.points_tracer import PointsTracer
from gpupipe.dataset.annotation_columns import AnnotationColumn, find_positions, scale_to_pixels
from gpupipe.dataset.spec import Spec
from gpupipe.errors import Problem, StepError
from gpupipe.pipeline.annotations import Annotations, Floats
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import NoLoweringError, SampleIncompatibleError

Steps = Mapping[str, Sequence[tuple[Entry, dict[str, NDArray[Any]]]]]
"""The steps of each field and view, with their parameters (B, ...)."""
Array = NDArray[Any]
TO_ORIGINAL, ORIG_SIZE = "to_original", "orig_size"
VALUES, OFFSETS = ".values", ".offsets"
"""The suffixes of the two dense tensors that stand for a Ragged until the loader delivers it."""


class ImmovableError(StepError):
    """A step may move pixels in a way that annotations cannot follow.

    Attributes:
        problem: The step's location in the YAML, and why.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.where}: {problem.what}")
        self.problem = problem


@dataclass(frozen=True)
class BatchAnnotations:
    """The annotations of a batch after all steps, and what the steps decided by them.

    Attributes:
        rows: For each field of annotations in the batch: its rows (sum N, ...), and their offsets
            int64 (B + 1,).
        values: Arrays (B, ...), such as "to_original".
        parameters: The parameters of each step of each field and view, (B, ...). Engines run the
            steps with these.
    """

    rows: Mapping[str, tuple[Array, NDArray[np.int64]]]
    values: Mapping[str, Array]
    parameters: Mapping[str, list[dict[str, Array]]]

    def select(self, chosen: Sequence[int] | NDArray[Any]) -> "BatchAnnotations":
        """Return the annotations of some samples: positions in the batch, or a bool for each."""
        numbers = np.asarray(chosen)
        numbers = np.flatnonzero(numbers) if numbers.dtype == bool else numbers.astype(np.int64)
        rows = {}
        for name, (values, offsets) in self.rows.items():
            positions, taken = find_positions(offsets, numbers)
            rows[name] = values[positions], taken
        return replace(
            self,
            rows=rows,
            values={name: values[numbers] for name, values in self.values.items()},
            parameters={
                field: [{name: v[numbers] for name, v in drawn.items()} for drawn in of_field]
                for field, of_field in self.parameters.items()
            },
        )

    def split(self, bounds: Sequence[int]) -> list["BatchAnnotations"]:
        """Return the annotations of successive samples: of those between each two bounds."""
        spans = list(pairwise(bounds))
        ends = {name: offsets[[*bounds]].tolist() for name, (_, offsets) in self.rows.items()}
        return [
            BatchAnnotations(
                {
                    name: (values[of[n] : of[n + 1]], offsets[a : b + 1] - of[n])
                    for (name, (values, offsets)), of in zip(
                        self.rows.items(), ends.values(), strict=True
                    )
                },
                {name: values[a:b] for name, values in self.values.items()},
                {
                    field: [{name: v[a:b] for name, v in drawn.items()} for drawn in of_field]
                    for field, of_field in self.parameters.items()
                },
            )
            for n, (a, b) in enumerate(spans)
        ]

    def arrays(self) -> dict[str, Array]:
        """Return all that a batch has of them as dense arrays, by name."""
        arrays = dict(self.values)
        for name, (values, offsets) in self.rows.items():
            arrays |= {name + VALUES: values, name + OFFSETS: offsets}
        return arrays


def list_ragged(pipeline: Pipeline) -> dict[str, Spec]:
    """Return the spec of each field of annotations in a batch, by its name there, in order.

    A view has annotations of its own, with the view's name before theirs: "global_0_boxes".
    """
    return {
        name: pipeline.annotations[field]
        for image in pipeline.fields
        for output in pipeline.views_of(image) or (image,)
        for name, field in list_names(pipeline, image, output).items()
    }


def list_arrays(pipeline: Pipeline) -> list[str]:
    """Return the names of all arrays that `BatchAnnotations.arrays` may have."""
    names = [name + suffix for name in list_ragged(pipeline) for suffix in (VALUES, OFFSETS)]
    for image in pipeline.annotated:
        outputs = pipeline.views_of(image) or (image,)
        names += [prefix_of(pipeline, image) + ORIG_SIZE]
        names += [prefix_of(pipeline, output) + TO_ORIGINAL for output in outputs]
    return names


def list_names(pipeline: Pipeline, image: str, output: str) -> dict[str, str]:
    """Return for each field in a batch which annotations it holds, for one image or view."""
    prefix = "" if output == image else f"{output}_"
    return {prefix + name: name for name in pipeline.annotations_of(image)}


def prefix_of(pipeline: Pipeline, output: str) -> str:
    """Return what "orig_size" and "to_original" of an image or view have before their names."""
    return "" if output == pipeline.main else f"{output}_"


def annotate(
    pipeline: Pipeline,
    columns: Mapping[str, AnnotationColumn],
    steps: Steps,
    sizes: Mapping[str, Floats],
    orientations: Mapping[str, NDArray[np.int64]],
    declared: Mapping[str, NDArray[np.int32]],
) -> BatchAnnotations:
    """Move the annotations of a batch through the steps of their images.

    Args:
        pipeline: The fields, views and annotations.
        columns: The rows of the batch's samples, by field of annotations.
        steps: The steps of each field and view. Parameters that steps decide are written into them.
        sizes: [height, width] of the decoded images, (B, 2), by field.
        orientations: EXIF orientations, int64 (B,), by field whose `decode` applies them.
        declared: [height, width] of the stored images by their annotations, (B, 2), by field; of
            the fields for which the index has them.

    Raises:
        SampleIncompatibleError: A step cannot process one of the samples, or an image has another
            size than declared.
        StepError: The code of a step failed, or a step may move pixels in a way that annotations
            cannot follow.
    """
    rows: dict[str, tuple[Array, NDArray[np.int64]]] = {}
    values: dict[str, Array] = {}
    for image in pipeline.annotated:
        specs = pipeline.annotations_of(image)
        size, turned = sizes[image], orientations.get(image)
        swaps = np.zeros(len(size), bool) if turned is None else turned >= 5
        stored = np.where(swaps[:, None], size[:, ::-1], size).astype(np.int64)
        pixels = scale_to_pixels(columns, image, stored)
        tracer = PointsTracer(Annotations(pixels, specs, len(size)), size, turned)
        if image in declared:
            _check_sizes(declared[image], stored)
        values[prefix_of(pipeline, image) + ORIG_SIZE] = stored
        _run(tracer, steps[image])
        views = pipeline.views_of(image)
        for output in views or (image,):
            part = tracer.fork() if views else tracer
            if views:
                _run(part, steps[output])
            assert part.annotations is not None
            for name, field in list_names(pipeline, image, output).items():
                rows[name] = part.annotations.delivered(field), part.annotations.offsets(field)
            if (matrix := part.to_original()) is not None:
                values[prefix_of(pipeline, output) + TO_ORIGINAL] = matrix
    _share_decided(pipeline, steps)
    parameters = {name: [drawn for _, drawn in of_field] for name, of_field in steps.items()}
    return BatchAnnotations(rows, values, parameters)


def _share_decided(pipeline: Pipeline, steps: Steps) -> None:
    """Give a step on several fields, such as image and mask, what it decided by boxes on one."""
    annotated = pipeline.annotated
    decided = {entry.key: parameters for name in annotated for entry, parameters in steps[name]}
    for name in pipeline.fields:
        for entry, parameters in steps[name] if name not in annotated else ():
            parameters.update(decided.get(entry.key, {}))


def _run(tracer: PointsTracer, steps: Sequence[tuple[Entry, dict[str, Array]]]) -> None:
    for entry, parameters in steps:
        tracer.spec = entry.input_spec
        try:
            entry.lower(tracer, parameters)
        except NoLoweringError as e:
            what = f"{entry.key} cannot move the boxes and points of its image: {e}"
            raise ImmovableError(Problem(entry.where, what)) from None


def _check_sizes(declared: NDArray[np.int32], found: NDArray[np.int64]) -> None:
    """Raise SampleIncompatibleError if an image has another size than its annotations say.

    Args:
        declared: [height, width] of the stored images by their annotations, (B, 2).
        found: [height, width] of the stored images, (B, 2).
    """
    wrong = np.flatnonzero((declared != found).any(-1))
    if len(wrong):
        (high, wide), (height, width) = declared[wrong[0]].tolist(), found[wrong[0]].tolist()
        raise SampleIncompatibleError(
            f"its annotations are of an image of {wide}x{high} pixels (width x height), but the "
            f"file has {width}x{height}"
        )
