"""The tensor (B, ...) of one field of a batch, in which each sample has a slot."""

from collections.abc import Iterable, Sequence
from threading import Lock

import numpy as np
import torch

from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu.pixels import Array, Pixels, as_tensor, view_as_array
from gpupipe.pipeline.tensors import from_steps, to_steps
from gpupipe.runtime.batch_memory import BatchMemory

MAX_JOINED = 4096
"""Samples of more bytes are copied one by one: the copies cost more than the calls of Python."""


class OutputBuffer:
    """The tensor (B, ...) of one field of a batch.

    A kernel calls `begin` for a sample, and then writes into its slot. The first `begin` allocates
    the tensor, since the shape is not certain before a file is decoded.

    Args:
        count: Number of samples in the batch.
        format: How the field is delivered.
        memory: The pool that allocates the tensor; None if nothing is delivered.

    Attributes:
        format: How the field is delivered.
    """

    def __init__(self, count: int, format: DeliveryFormat, memory: BatchMemory | None) -> None:
        self.format = format
        self._one_shape: tuple[int, ...] | None = None
        """The shape that `begin_all` recorded for all samples."""
        self._own_shapes: dict[int, tuple[int, ...]] = {}
        """The shapes that were recorded one by one, since then."""
        self._batch: torch.Tensor | None = None
        self._array: Array = np.empty(0)
        self._count, self._memory, self._lock = count, memory, Lock()

    def list_shapes(self, rows: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the delivered shapes of samples, without those that no `begin` recorded."""
        return [shape for row in rows if (shape := self._find_shape(row)) is not None]

    def _find_shape(self, row: int) -> tuple[int, ...] | None:
        return self._own_shapes.get(row, self._one_shape)

    @property
    def is_allocated(self) -> bool:
        """Whether a call of `begin` has allocated the tensor, and so fixed the shape."""
        return self._batch is not None

    def begin(self, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Record the shape of a sample. The first sample's shape becomes that of all slots.

        Args:
            row: The sample's position in the batch.
            shape: The sample's shape in the order of axes of steps: (C, H, W) for an image.
            dtype: The dtype to deliver.

        Returns:
            Whether the sample has a slot. It has none if the buffer has no memory, or if the
            sample's shape differs from the shape of the first sample.
        """
        delivered = self.format.deliver_shape(shape)
        if self._find_shape(row) != delivered:
            self._own_shapes[row] = delivered
        if self._memory is None:
            return False
        return self._begin_batch(self._memory, shape, dtype)

    def _begin_batch(self, memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Allocate the tensor, unless it is; return whether its slots have this shape."""
        if self._batch is None:
            with self._lock:
                if self._batch is None:
                    batch, self._array = self._allocate(memory, shape, dtype)
                    self._batch = batch
        return self._array.shape[1:] == shape

    def begin_all(self, shape: tuple[int, ...], dtype: torch.dtype) -> Array | None:
        """Record one shape for all samples of the batch.

        Returns:
            The tensor as a NumPy array (B, ...), bfloat16 as int16; None if the buffer has no
            memory, or if a sample that was recorded before has another shape.
        """
        if self._memory is None or not self._begin_batch(self._memory, shape, dtype):
            return None
        self._own_shapes, self._one_shape = {}, self.format.deliver_shape(shape)
        return self._array

    def put(self, rows: range, samples: Sequence[Pixels]) -> bool:
        """Write successive samples to their slots, all in one call.

        Returns:
            False if nothing was written, because the samples are large, or differ in shape or
            dtype, or have no slot in one tensor. Then the caller writes each by itself.
        """
        if self._memory is None or samples[0].nbytes > MAX_JOINED:
            return False
        tensors = [as_tensor(sample) for sample in samples]
        shape, dtype = tuple(tensors[0].shape), tensors[0].dtype
        if any(tensor.shape != shape or tensor.dtype != dtype for tensor in tensors):
            return False
        delivered = getattr(torch, self.format.dtype) if self.format.dtype else dtype
        if not self._begin_batch(self._memory, shape, delivered):
            return False
        assert self._batch is not None
        self._batch[rows.start : rows.stop] = torch.stack(tensors)
        self._own_shapes.update(dict.fromkeys(rows, self.format.deliver_shape(shape)))
        return True

    def have_one_shape(self, rows: Iterable[int]) -> bool:
        """Return whether samples have one shape. `begin` or `begin_all` must have recorded each."""
        if not self._own_shapes:
            return True
        return len({self._find_shape(row) for row in rows}) < 2

    def has_slot(self, row: int) -> bool:
        """Return whether a sample has a slot; False before `begin` was called for it."""
        if self._batch is None:
            return False
        return self._find_shape(row) == self.format.deliver_shape(self._array.shape[1:])

    def slot(self, row: int) -> torch.Tensor:
        """Return the slot of a sample, a view of the batch in the order of axes of steps.

        The sample must have a slot.
        """
        assert self._batch is not None
        return self._batch[row]

    def slot_array(self, row: int) -> Array:
        """Return the slot as a NumPy array; a bfloat16 slot is viewed as int16."""
        slot: Array = self._array[row]
        return slot

    def take(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the samples in `rows` as a tensor (B, ...). Each of them must have a slot."""
        layout = self.format.layout
        assert self._batch is not None
        batch = self._batch if len(rows) == self._count else self._batch[[*rows]]
        return batch if layout is None else from_steps(batch, layout, axes_before=1)

    def _allocate(
        self, memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[torch.Tensor, Array]:
        """Return a batch, (B, ...) in the order of axes of steps, of the delivered strides.

        Return it as an array, too; one of bfloat16 as int16.
        """
        if self.format.layout is not None:
            batch = memory.allocate((self._count, *self.format.deliver_shape(shape)), dtype)
            batch = to_steps(batch, self.format.layout, axes_before=1)
        elif self.format.channels_last and len(shape) == 3:
            channels, height, width = shape
            batch = memory.allocate((self._count, height, width, channels), dtype)
            batch = batch.permute(0, 3, 1, 2)
        else:
            return memory.allocate_with_array((self._count, *shape), dtype)
        return batch, view_as_array(batch)
