"""Computes with torchvision's functionals where boxes and points of a pipeline should be.

stored boxes ─> PointsTracer, step by step ─> parameters that steps decide
             └> torchvision_annotations.move, sample by sample ─> expected coordinates
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import BoundingBoxFormat, KeyPoints

from gpupipe.annotations.batch_annotations import list_names
from gpupipe.annotations.points_tracer import TRANSPOSED, PointsTracer
from gpupipe.annotations.rows import find_orientations
from gpupipe.bench.torchvision_annotations import Annotated, has_functionals, move, wrap_boxes
from gpupipe.dataset.annotation_columns import scale_to_pixels, take_annotations
from gpupipe.dataset.index import Index
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.annotations import Annotations, Floats
from gpupipe.pipeline.container import Container, select_params
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Params, Step
from gpupipe.steps.decode import Decode

Coordinates = list[torch.Tensor]
"""The boxes (N, 4) or points (N, K, 2) of each sample, float64."""
_COORDINATES = ("boxes", "points")


class _NoFunctionalsError(Exception):
    """torchvision has no functionals for a step."""


def compute_coordinates(
    pipeline: Pipeline,
    index: Index,
    ids: NDArray[np.int64],
    sizes: Mapping[str, NDArray[np.int64]],
    seed: int,
) -> dict[str, Coordinates]:
    """Return the boxes and points that torchvision makes of some samples in epoch 0.

    Args:
        pipeline: The steps.
        index: The samples.
        ids: Rows of the index, (B,).
        sizes: [height, width] of the stored images, (B, 2), by field.
        seed: The loader's seed.

    Returns:
        The coordinates by their name in a batch. They are left out for an image with a step for
        which torchvision has no functionals, such as `elastic_transform`, or with other annotations
        than boxes and points that go with them.
    """
    pipeline = pipeline.at_epoch(0)
    columns = take_annotations(
        {name: index.annotations[name] for name in pipeline.annotations}, ids
    )
    orientations = find_orientations(pipeline, index.columns, ids, {})
    found: dict[str, Coordinates] = {}
    for image in pipeline.fields:
        specs = pipeline.annotations_of(image)
        if not _are_boxes_with_points(specs):
            continue
        turned = orientations.get(image, np.ones(len(ids), np.int64))
        size = np.where(turned[:, None] >= TRANSPOSED, sizes[image][:, ::-1], sizes[image])
        annotations = Annotations(scale_to_pixels(columns, image, sizes[image]), specs, len(ids))
        tracer = PointsTracer(annotations, size.astype(np.float64), turned)
        with suppress(_NoFunctionalsError):
            start = _run(pipeline.entries_on(image), tracer, [], seed, ids)
            for output in pipeline.views_of(image):
                fork = tracer.fork()
                samples = _run(pipeline.entries_on(output), fork, start, seed, ids)
                found |= _list_coordinates(list_names(pipeline, image, output), fork, samples)
            if not pipeline.views_of(image):
                found |= _list_coordinates(list_names(pipeline, image, image), tracer, start)
    return found


def _are_boxes_with_points(specs: Mapping[str, Spec]) -> bool:
    """Return whether there is one field of boxes, and at most one of points, which goes with it."""
    boxes, points = ([n for n, s in specs.items() if s.kind == kind] for kind in _COORDINATES)
    if len(boxes) != 1 or len(points) > 1:
        return False
    annotation = specs[points[0]].annotation if points else None
    return annotation is None or annotation.rows_with == boxes[0]


def _run(
    entries: Sequence[Entry],
    tracer: PointsTracer,
    samples: list[Annotated],
    seed: int,
    ids: NDArray[np.int64],
) -> list[Annotated]:
    """Run steps on a tracer, which decides their parameters; return what torchvision makes of them.

    Args:
        entries: The steps.
        tracer: The annotations before the steps. It is changed.
        samples: The same, sample by sample; [] if no step but `decode` was run.
        seed: The loader's seed.
        ids: The samples' rows in the index.
    """
    for entry in entries:
        tracer.spec = entry.input_spec
        parameters = entry.parameters(seed, 0, ids)
        if isinstance(entry.step, Decode):
            entry.lower(tracer, parameters)
            continue
        samples = samples or _list_samples(tracer)
        if not _has_functionals(entry.name, entry.step, entry.lower, parameters, tracer):
            raise _NoFunctionalsError
        entry.lower(tracer, parameters)
        samples = [
            move(entry.name, entry.step, {k: v[n] for k, v in parameters.items()}, sample)
            for n, sample in enumerate(samples)
        ]
    return samples or _list_samples(tracer)


def _has_functionals(
    name: str, step: Step, lower: Callable[[Any, Params], None], p: Params, tracer: PointsTracer
) -> bool:
    """Return whether `move` knows a step, or the step leaves boxes and points alone."""
    if isinstance(step, Container) and has_functionals(name):
        return all(
            _has_functionals(n.name, n.step, n.lower, select_params(number, p), tracer)
            for number, n in enumerate(step.transforms)
        )
    if has_functionals(name):
        return True
    fork = tracer.fork()
    lower(fork, p)
    before, after = _coordinates_of(tracer), _coordinates_of(fork)
    return fork.num_moves == tracer.num_moves and all(map(np.array_equal, before, after))


def _coordinates_of(tracer: PointsTracer) -> list[Floats]:
    annotations = tracer.annotations
    assert annotations is not None
    return [annotations.values(name) for kind in _COORDINATES for name in annotations.names(kind)]


def _list_samples(tracer: PointsTracer) -> list[Annotated]:
    """Return the current boxes and points of each sample."""
    annotations, samples = tracer.annotations, []
    assert annotations is not None
    (name,) = annotations.names("boxes")
    boxes, *points = map(torch.from_numpy, _coordinates_of(tracer))
    pairs = [
        spec.annotation.flip_pairs
        for spec in annotations.specs.values()
        if spec.kind == "points" and spec.annotation is not None
    ]
    every = points[0] if points else torch.zeros(len(boxes), 0, 2, dtype=torch.float64)
    offsets = annotations.offsets(name).tolist()
    for (first, end), size in zip(pairwise(offsets), tracer.size.astype(int).tolist(), strict=True):
        canvas = (size[0], size[1])
        samples.append(
            Annotated(
                wrap_boxes(boxes[first:end], canvas, "soft"),
                KeyPoints(every[first:end], canvas_size=canvas),
                torch.arange(end - first),
                pairs[0] if pairs else (),
            )
        )
    return samples


def _list_coordinates(
    names: Mapping[str, str], tracer: PointsTracer, samples: Sequence[Annotated]
) -> dict[str, Coordinates]:
    """Return the coordinates of each sample as they are delivered, by their name in a batch."""
    annotations = tracer.annotations
    assert annotations is not None
    found = {}
    for name, field in names.items():
        kind = annotations.specs[field].kind
        if kind == "points":
            found[name] = [sample.points.as_subclass(torch.Tensor) for sample in samples]
        elif kind == "boxes":
            format = BoundingBoxFormat[annotations.format]
            found[name] = [
                F.convert_bounding_box_format(sample.boxes, new_format=format).as_subclass(
                    torch.Tensor
                )
                for sample in samples
            ]
    return found
