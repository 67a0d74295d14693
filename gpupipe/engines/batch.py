"""What all engines share to make a batch: its format, reusable memory, labels, a check of shapes.

New memory for a large batch costs as much time as the work on the batch, because the system clears
each page at its first use. So BatchMemory keeps the blocks that no tensor refers to any more, and
uses them for new batches.

A block is in use while any tensor over it lives. Views, slices and NumPy arrays share the tensor's
storage, also in other threads, and the storage refers to one NumPy array over the block. When that
array is freed, its block returns to the pool. So a batch that the user keeps is never overwritten.
A forked child has its own copy of the pool and of all blocks. Pickling copies the pixels.

Batches differ in size if samples differ, if a schedule changes their size, and at the end of an
epoch. So a batch may use a block of up to twice its size. If too many blocks are unused, the pool
drops the one that has been unused longest.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.annotations.batch_annotations import OFFSETS
from gpupipe.dataset.index import Index
from gpupipe.engines.base import Batch, Job
from gpupipe.errors import ShapeError
from gpupipe.runtime.memory import to_device
from gpupipe.sampling.sampler import Plan

Shapes = dict[str, tuple[int, ...]]
"""The shape of each field of one delivered sample, by field name."""
Block = NDArray[np.uint8]
SHAPES = ".shapes"
"""The suffix of the shapes of samples that differ in size; their elements have VALUES."""
_PART_BYTES = 1 << 20
"""About how many bytes of results `convert_in_parts` computes at a time, to stay in the cache."""
_MAX_WASTE = 2
"""The maximum size of a batch's block, as a multiple of the batch's size."""


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


def new_block(size: int) -> Block:
    """Return new memory of `size` bytes."""
    return np.empty(size, np.uint8)


def new_pinned_block(size: int) -> Block:
    """Return new page-locked memory of `size` bytes, which allows asynchronous copies to a GPU."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


class BatchMemory:
    """Allocates the memory of batches, from a pool of blocks that are used again.

    Args:
        spare: The maximum number of unused blocks in the pool.
        new: Returns a new block of the given number of bytes.
    """

    def __init__(self, spare: int, new: Callable[[int], Block] = new_block) -> None:
        self._spare, self._new = spare, new
        self._free: deque[Block] = deque()
        """The unused blocks. The one that has been unused longest comes first."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor in memory that no other tensor uses."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        block = self._take(size)
        # A view of this view would keep `block` alive, but not `owner`: hand out tensors only.
        owner = block[:size]
        returning = weakref.finalize(owner, self._return, block)
        returning.atexit = False
        return torch.from_numpy(owner).view(dtype).view(shape)

    def count_free(self) -> int:
        """Return the number of unused blocks in the pool."""
        return len(self._free)

    def release(self) -> None:
        """Free all unused blocks; from now on, free each block as soon as no tensor uses it."""
        self._spare = 0
        self._free.clear()

    def _take(self, size: int) -> Block:
        """Return a block for `size` bytes: the smallest unused block that fits, or a new one.

        Of several blocks of that size, it returns the one that was in use last.
        """
        unused = []
        with suppress(IndexError):
            while True:
                unused.append(self._free.pop())
        fitting = [n for n, block in enumerate(unused) if size <= len(block) <= _MAX_WASTE * size]
        smallest = min(fitting, key=lambda n: len(unused[n]), default=None)
        block = self._new(size) if smallest is None else unused.pop(smallest)
        self._free.extend(reversed(unused))
        return block

    def _return(self, block: Block) -> None:
        """Put a block into the pool, and drop the blocks beyond `spare`, the longest unused first.

        `weakref.finalize` calls this when the block's last tensor is freed: on any thread, even
        during another method of this class. So this method takes no lock.
        """
        self._free.append(block)
        with suppress(IndexError):
            while len(self._free) > self._spare:
                self._free.popleft()


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
    arrays = {name: array[plan.ids] for name, array in index.values.items()}
    if index.has_labels:
        arrays["label"] = index.labels[plan.ids]
    if plan.annotations is not None:
        arrays |= plan.annotations.arrays()
    tensors = {
        name: tensor if stays_on_cpu(name) else to_device(tensor, where)
        for name, array in arrays.items()
        for tensor in [torch.from_numpy(array)]
    }
    return tensors | {"id": torch.from_numpy(plan.ids)}


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
    counts = shapes.prod(1).tolist()
    parts = torch.split(values, counts) if counts else ()
    return [part.view(shape) for part, shape in zip(parts, shapes.tolist(), strict=True)]


def shapes_as_tensors(shapes: Sequence[Shapes]) -> Batch:
    """Return the shapes of all samples, int64 (B, axes), by their name in a batch."""
    names = shapes[0] if shapes else ()
    return {
        name + SHAPES: torch.tensor([of_sample[name] for of_sample in shapes]) for name in names
    }


def check_shapes(shapes: list[Shapes], plan: Plan, job: Job) -> None:
    """Raise ShapeError, naming two samples, if samples of a batch differ in the shape of a field.

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
