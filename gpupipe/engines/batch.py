"""What all engines do to a batch: add what the index knows, and explain shapes that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupipe.dataset.index import Index
from gpupipe.engines.base import Batch, Job
from gpupipe.errors import ShapeError
from gpupipe.runtime.transfer import to_device
from gpupipe.sampling.sampler import Plan

if TYPE_CHECKING:
    from torch import device

Shapes = dict[str, tuple[int, ...]]
"""The shape of each field of one delivered sample, by field name."""


def labels_and_values(index: Index, plan: Plan, where: device) -> Batch:
    """Return the part of a batch that comes from the index alone: labels, values and ids.

    Args:
        index: The index of the samples.
        plan: The plan of the batch.
        where: The device of the labels and values. The ids stay on the CPU.
    """
    import torch

    arrays = {name: array[plan.ids] for name, array in index.values.items()} | {
        "label": index.labels[plan.ids]
    }
    tensors = {name: to_device(torch.from_numpy(array), where) for name, array in arrays.items()}
    return tensors | {"id": torch.from_numpy(plan.ids)}


def check_shapes(shapes: list[Shapes], plan: Plan, job: Job) -> None:
    """Raise ShapeError, which names two samples, if a field has different shapes in a batch.

    Args:
        shapes: The shapes of each sample.
        plan: The plan of the batch.
        job: The job, for the names of fields and samples.
    """
    for name in job.pipeline.outputs:
        other = next((i for i, s in enumerate(shapes) if s[name] != shapes[0][name]), None)
        if other is not None:
            raise ShapeError(
                _explain(name, [(int(plan.ids[i]), shapes[i][name]) for i in (0, other)], job)
            )


def _explain(name: str, samples: list[tuple[int, tuple[int, ...]]], job: Job) -> str:
    source = job.pipeline.source_of(name)
    image = job.pipeline.is_image_file(name)
    descriptions = [
        f"{job.index.location(id, source if image else None)} is "
        f"{'x'.join(map(str, s[1:] if image else s))}"
        for id, s in samples
    ]
    subject = "images" if name == "image" else f"fields '{name}'"
    on = "" if source == job.pipeline.main else f", on: {name}"
    return (
        f"the {subject} of a batch differ in {'size (height x width)' if image else 'shape'}: "
        f"{descriptions[0]}, {descriptions[1]}. Add a step that makes them equal to "
        f"pipeline '{job.pipeline.name}': resize with size: [height, width]{on}, "
        "random_resized_crop, center_crop or random_crop"
    )
