"""What all engines share of a batch: memory that is used again, labels, and the check of shapes.

The memory of a large batch that is new costs as much time as the work on it, since the system
clears each page at its first use. So BatchMemory keeps blocks that no tensor refers to any more.

A block belongs to the tensors over it: views, slices, NumPy arrays and other threads share the
tensor's storage, and the storage holds the NumPy array that it was made from. When that array
dies, its block returns to the pool. So a user who keeps batches costs memory, never wrong pixels.
A forked child has its own copy of the pool and of all blocks. Pickling copies the pixels.

Batches differ in size where samples do, where a schedule changes their size, and at the end of an
epoch. So a batch may take a block that is up to twice as large, and the pool drops the blocks that
have waited longest, whatever their size.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.dataset.index import Index
from gpupipe.engines.base import Batch, Job
from gpupipe.errors import ShapeError
from gpupipe.runtime.memory import to_device
from gpupipe.sampling.sampler import Plan

Shapes = dict[str, tuple[int, ...]]
"""The shape of each field of one delivered sample, by field name."""
Block = NDArray[np.uint8]
_MAX_WASTE = 2
"""How many times as large as a batch its block may be."""


def new_block(size: int) -> Block:
    """Return new memory of `size` bytes."""
    return np.empty(size, np.uint8)


def new_pinned_block(size: int) -> Block:
    """Return new page-locked memory, from which copies to a GPU need not wait."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


class BatchMemory:
    """A pool of blocks of memory.

    Args:
        spare: How many unused blocks are kept.
        new: Makes a block of a number of bytes.
    """

    def __init__(self, spare: int, new: Callable[[int], Block] = new_block) -> None:
        self._spare, self._new = spare, new
        self._free: deque[Block] = deque()
        """The unused blocks. Those that have waited longest come first."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of any content, in memory that no other tensor uses."""
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
        """Return how many blocks wait to be used again."""
        return len(self._free)

    def release(self) -> None:
        """Give back all blocks that no tensor uses, and keep none of those that return later."""
        self._spare = 0
        self._free.clear()

    def _take(self, size: int) -> Block:
        """Return a block: the smallest unused one that fits, or a new one.

        Of several of that size, it is the one that has waited shortest.
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
        """Put a block back into the pool. Beyond `spare` unused blocks, drop the oldest.

        `weakref.finalize` calls this when the block's tensor is deleted: on any thread, even during
        another method of this class. So it takes no lock.
        """
        self._free.append(block)
        with suppress(IndexError):
            while len(self._free) > self._spare:
                self._free.popleft()


def labels_and_values(index: Index, plan: Plan, where: torch.device) -> Batch:
    """Return the part of a batch that comes from the index alone: labels, values and ids.

    Args:
        index: The index of the samples.
        plan: The plan of the batch.
        where: The device of the labels and values. The ids stay on the CPU.
    """
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
