"""What all engines share to make a batch: its format, labels, a check of shapes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.annotations.batch_annotations import OFFSETS
from gpupipe.dataset.index import Index
from gpupipe.dataset.layout import canonical_layout
from gpupipe.engines.base import Batch, Job
from gpupipe.errors import ShapeError
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.runtime.memory import to_device
from gpupipe.sampling.sampler import Plan
from gpupipe.sampling.siblings import Siblings

ShapesOfField = Sequence[tuple[int, ...]] | NDArray[np.int64]
"""The shape of each sample in a batch; an array is (B, axes)."""
Shapes = Mapping[str, ShapesOfField]
"""The shapes of the delivered samples of a batch, by field."""
SHAPES = ".shapes"
"""The suffix of the shapes of samples that differ in size; their elements have VALUES."""
_PART_BYTES = 1 << 20
"""About how many bytes of results `convert_in_parts` computes at a time, to stay in the cache."""


@dataclass(frozen=True)
class DeliveryFormat:
    """The dtype, the axes and the memory format in which a field is delivered.

    Attributes:
        dtype: The delivered dtype; None keeps the dtype after the last step.
        layout: The axes of a field that is an array, such as "HWC"; None for image files.
        channels_last: Whether images have the strides of channels_last.
    """

    dtype: str | None
    layout: str | None
    channels_last: bool

    @property
    def is_interleaved(self) -> bool:
        """Whether the channels of a pixel are next to each other, as in (H, W, C)."""
        return self.channels_last or self.layout == "HWC"

    def deliver_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Convert the shape of a sample from the order of axes of steps to that of delivery."""
        if self.layout is None:
            return shape
        sizes = dict(zip(canonical_layout(self.layout), shape, strict=True))
        return tuple(sizes[axis] for axis in self.layout)

    @classmethod
    def of(cls, job: Job, name: str) -> "DeliveryFormat":
        """Return the format in which a job delivers the field or view `name`."""
        pipeline = job.pipeline
        source = pipeline.source_of(name)
        spec = pipeline.fields[source]
        is_bytes = spec.encoded and not pipeline.entries_on(source)
        return cls(
            job.loader.dtype if name in pipeline.main_outputs and not is_bytes else None,
            None if spec.encoded else spec.layout,
            job.loader.memory_format == "channels_last" and spec.encoded,
        )


def convert_in_parts(
    images: torch.Tensor, convert: Callable[[torch.Tensor], torch.Tensor], memory: BatchMemory
) -> torch.Tensor:
    """Return `convert(images)`, computed for a few images at a time.

    Args:
        images: A batch (B, ...).
        convert: Converts images (n, ...), each independently of all others, to a dense tensor.
        memory: Provides the memory of the result.
    """
    count = len(images)
    if count < 2:
        return convert(images)
    first = convert(images[:1])
    shape, strides = first.shape[1:], first.stride()[1:]
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    block = memory.allocate((count, *(shape[axis] for axis in order)), first.dtype)
    batch = block.permute(0, *(order.index(axis) + 1 for axis in range(len(shape))))
    batch[:1] = first
    part = max(1, _PART_BYTES // max(1, first.nbytes))
    for start in range(1, count, part):
        batch[start : start + part] = convert(images[start : start + part])
    return batch


def labels_and_values(index: Index, plan: Plan, where: torch.device) -> Batch:
    """Return the part of a batch that needs no pixels: labels, values, annotations and ids.

    Args:
        index: The index of the samples.
        plan: The plan of the batch; with annotations, if `Job.annotate` returned it.
        where: The device of the labels and values. The ids and offsets stay on the CPU.
    """

    def list_all(siblings: Siblings) -> list[Batch]:
        return [_index_values(index, ids) for ids in siblings.batches]

    siblings = plan.siblings
    batch = siblings and siblings.take(plan.number, index, "", list_all)
    batch = batch or _index_values(index, plan.ids)
    if plan.annotations is not None:
        ids = batch.pop("id")
        arrays = plan.annotations.arrays()
        batch |= {name: torch.from_numpy(array) for name, array in arrays.items()} | {"id": ids}
    if where.type == "cpu":
        return batch
    return {n: v if stays_on_cpu(n) else to_device(v, where) for n, v in batch.items()}


def _index_values(index: Index, ids: NDArray[np.int64]) -> Batch:
    """Return what the index knows of samples: values, labels and ids."""
    resolved, rows = index.resolve(ids)
    arrays = {name: array[rows] for name, array in resolved.values.items()}
    if resolved.has_labels:
        arrays["label"] = resolved.labels[rows]
    return {name: torch.from_numpy(array) for name, array in (arrays | {"id": ids}).items()}


def stays_on_cpu(name: str) -> bool:
    """Return whether a tensor of a batch stays on the CPU: ids, offsets and shapes do."""
    return name == "id" or name.endswith((OFFSETS, SHAPES))


def flatten(samples: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all samples, one sample after the other, (elements,)."""
    return torch.cat([sample.reshape(-1) for sample in samples])


def unflatten(values: torch.Tensor, shapes: torch.Tensor) -> list[torch.Tensor]:
    """Return the samples of which `flatten` made `values`, as views.

    Args:
        values: The elements of all samples, (elements,).
        shapes: The shape of each sample, int64 (B, axes), on the CPU.
    """
    array = shapes.numpy()  # which holds the interpreter's lock for less time than torch
    counts = array.prod(1).tolist()
    parts = values.split_with_sizes(counts) if counts else ()
    return [part.view(shape) for part, shape in zip(parts, array.tolist(), strict=True)]


def shapes_as_tensors(shapes: Shapes) -> Batch:
    """Return the shapes of the samples of a batch, int64 (B, axes), by their name in it."""
    arrays = {name + SHAPES: np.array(of_field, np.int64) for name, of_field in shapes.items()}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def check_shapes(shapes: Shapes, plan: Plan, job: Job) -> None:
    """Raise ShapeError, naming two samples, if samples of a batch differ in the shape of a field.

    Args:
        shapes: The shapes of the samples, by field.
        plan: The plan of the batch.
        job: The job, for the names of fields and samples.
    """
    for name in job.pipeline.outputs:
        every = [tuple(map(int, shape)) for shape in shapes[name]]
        other = next((i for i, shape in enumerate(every) if shape != every[0]), None)
        if other is not None:
            raise ShapeError(
                _explain(name, [(int(plan.ids[i]), every[i]) for i in (0, other)], job)
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
