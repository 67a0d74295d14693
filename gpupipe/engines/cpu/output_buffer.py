"""The tensor (B, ...) of one field of a batch, in which each sample has a slot."""

from collections.abc import Iterable, Sequence
from math import prod
from threading import Lock

import numpy as np
import torch

from gpupipe.dataset.layout import canonical_layout
from gpupipe.engines.batch import DeliveryFormat, flatten
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
        is_equal: Whether all samples must have one shape. If not, each gets memory of its own.

    Attributes:
        format: How the field is delivered.
    """

    def __init__(
        self,
        count: int,
        format: DeliveryFormat,
        memory: BatchMemory | None,
        is_equal: bool = True,
    ) -> None:
        self.format, self._is_equal = format, is_equal
        self._slots: dict[int, torch.Tensor] = {}
        """The samples that have memory of their own, by row."""
        self._flat: torch.Tensor | None = None
        """The memory of `begin_each`, if all samples still have their slots in it."""
        self._one_shape: tuple[int, ...] | None = None
        """The shape that `begin_all` recorded for all samples."""
        self._own_shapes: dict[int, tuple[int, ...]] = {}
        """The shapes that were recorded one by one, since then."""
        self._batch: torch.Tensor | None = None
        self._array: Array = np.empty(0)
        self._count, self._memory, self._lock = count, memory, Lock()

    @property
    def shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of each sample for which `begin` was called, by its row."""
        rows = self._own_shapes if self._one_shape is None else range(self._count)
        return {row: shape for row in rows if (shape := self._find_shape(row)) is not None}

    def _find_shape(self, row: int) -> tuple[int, ...] | None:
        return self._own_shapes.get(row, self._one_shape)

    @property
    def is_allocated(self) -> bool:
        """Whether a call of `begin` has allocated the tensor, and so fixed the shape."""
        return self._batch is not None

    @property
    def is_interleaved(self) -> bool:
        """Whether the channels of a pixel are next to each other, as in (H, W, C)."""
        return self.format.channels_last or self.format.layout == "HWC"

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
        delivered = self._delivered(shape)
        has_changed = self._find_shape(row) != delivered
        if has_changed:
            self._own_shapes[row] = delivered
        if self._memory is None:
            return False
        if self._batch is None and not self._is_equal:
            if row not in self._slots or has_changed:
                self._slots[row] = self._as_steps(self._memory.allocate(delivered, dtype))
                self._flat = None
            return True
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
        self._own_shapes, self._one_shape = {}, self._delivered(shape)
        return self._array

    def begin_each(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[Array]:
        """Record a shape for each sample of the batch.

        Returns:
            The slot of each sample as a NumPy array, bfloat16 as int16; [] if the buffer has no
            memory, or if all samples must have one shape.
        """
        if self._memory is None or self._is_equal or self._batch is not None or self._slots:
            return []
        delivered = [self._delivered(shape) for shape in shapes]
        self._own_shapes = dict(enumerate(delivered))
        counts = [prod(shape) for shape in delivered]
        self._flat = self._memory.allocate((sum(counts),), dtype)
        parts = zip(torch.split(self._flat, counts), delivered, strict=True)
        self._slots = {row: self._as_steps(p.view(shape)) for row, (p, shape) in enumerate(parts)}
        return [view_as_array(slot) for slot in self._slots.values()]

    def put(self, rows: range, samples: Sequence[Pixels]) -> bool:
        """Write successive samples to their slots, all in one call.

        Returns:
            False if nothing was written, because the samples are large, or differ in shape or
            dtype, or have no slot in one tensor. Then the caller writes each by itself.
        """
        if self._memory is None or not self._is_equal or samples[0].nbytes > MAX_JOINED:
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
        self._own_shapes.update(dict.fromkeys(rows, self._delivered(shape)))
        return True

    def _as_steps(self, slot: torch.Tensor) -> torch.Tensor:
        layout = self.format.layout
        return slot if layout is None else to_steps(slot, layout)

    def have_one_shape(self, rows: Iterable[int]) -> bool:
        """Return whether samples have one shape. `begin` or `begin_all` must have recorded each."""
        if not self._own_shapes:
            return True
        return len({self._find_shape(row) for row in rows}) < 2

    def has_slot(self, row: int) -> bool:
        """Return whether a sample has a slot; False before `begin` was called for it."""
        if row in self._slots:
            return True
        if self._batch is None:
            return False
        return self._find_shape(row) == self._delivered(self._array.shape[1:])

    def slot(self, row: int) -> torch.Tensor:
        """Return the slot of a sample, a view of the batch in the order of axes of steps.

        The sample must have a slot.
        """
        if row in self._slots:
            return self._slots[row]
        assert self._batch is not None
        return self._batch[row]

    def slot_array(self, row: int) -> Array:
        """Return the slot as a NumPy array; a bfloat16 slot is viewed as int16."""
        if row in self._slots:
            return view_as_array(self._slots[row])
        slot: Array = self._array[row]
        return slot

    def take(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the samples in `rows` as a tensor (B, ...). Each of them must have a slot.

        If samples may differ in shape, return the elements of all of them, (elements,).
        """
        layout = self.format.layout
        if not self._is_equal:
            if self._flat is not None and len(rows) == self._count:
                return self._flat
            slots = [self.slot(row) for row in rows]
            return flatten(slots if layout is None else [from_steps(s, layout) for s in slots])
        assert self._batch is not None
        batch = self._batch if len(rows) == self._count else self._batch[[*rows]]
        return batch if layout is None else from_steps(batch, layout, axes_before=1)

    def _delivered(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Convert the shape of a sample from the order of axes of steps to that of delivery."""
        layout = self.format.layout
        if layout is None:
            return shape
        sizes = dict(zip(canonical_layout(layout), shape, strict=True))
        return tuple(sizes[axis] for axis in layout)

    def _allocate(
        self, memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[torch.Tensor, Array]:
        """Return a batch, (B, ...) in the order of axes of steps, of the delivered strides.

        Return it as an array, too; one of bfloat16 as int16.
        """
        if self.format.layout is not None:
            batch = memory.allocate((self._count, *self._delivered(shape)), dtype)
            batch = to_steps(batch, self.format.layout, axes_before=1)
        elif self.format.channels_last and len(shape) == 3:
            channels, height, width = shape
            batch = memory.allocate((self._count, height, width, channels), dtype)
            batch = batch.permute(0, 3, 1, 2)
        else:
            return memory.allocate_with_array((self._count, *shape), dtype)
        return batch, view_as_array(batch)
