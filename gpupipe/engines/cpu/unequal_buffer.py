"""The memory of one field of a batch whose samples may differ in shape: see `loader.shapes`."""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.batch import DeliveryFormat, ShapesOfField, flatten
from gpupipe.engines.cpu.pixels import Array, view_as_array
from gpupipe.pipeline.tensors import from_steps, to_steps
from gpupipe.runtime.batch_memory import BatchMemory

UnequalSlots = tuple[Array, NDArray[np.int64], int, bool]
"""The slots of images for the extension: the values, [height, width] of each image, (B, 2), the
number of channels, and whether the channels of a pixel are next to each other. The values are a
tensor (B, C, H, W) with padding, or of one axis: see `Output` in native/output.h.
"""


class UnequalBuffer:
    """The slots of one field of a batch, each of a shape of its own.

    If all shapes are known before a kernel runs, `begin_each` allocates one tensor for all slots.
    Otherwise each `begin` allocates the slot of its sample.

    Args:
        count: Number of samples in the batch.
        format: How the field is delivered.
        memory: The pool that allocates the slots; None if nothing is delivered.
        pad_to: `begin_each` allocates a tensor (B, C, H, W), whose H and W are multiples of this
            number; None for a flat tensor.

    Attributes:
        format: How the field is delivered.
    """

    def __init__(
        self,
        count: int,
        format: DeliveryFormat,
        memory: BatchMemory | None,
        pad_to: int | None = None,
    ) -> None:
        self.format = format
        self._count, self._memory, self._pad_to = count, memory, pad_to
        self._shapes: dict[int, tuple[int, ...]] = {}
        """The delivered shape of each sample for which `begin` was called, by row."""
        self._own: dict[int, torch.Tensor] = {}
        """The slots that `begin` allocated, by row."""
        self._block: torch.Tensor | None = None
        """The tensor of `begin_each`."""
        self._array: Array = np.empty(0)
        """The same tensor as a NumPy array; one of bfloat16 as int16."""
        self._all_shapes: NDArray[np.int64] = np.empty((0, 0), np.int64)
        """The delivered shapes of the samples in that tensor, (B, axes)."""
        self._ends: list[int] = []
        """Where each sample ends in that tensor, if it is flat."""

    def list_shapes(self, rows: Sequence[int]) -> ShapesOfField:
        """Return the delivered shapes of samples. `begin` must have recorded each."""
        if self._block is not None and not self._shapes:
            return self._all_shapes if len(rows) == self._count else self._all_shapes[[*rows]]
        return [self._find_shape(row) for row in rows]

    def _find_shape(self, row: int) -> tuple[int, ...]:
        shape = self._shapes.get(row)
        return tuple(self._all_shapes[row].tolist()) if shape is None else shape

    def begin(self, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Record the shape of a sample; return whether it has a slot: see OutputBuffer.begin."""
        delivered = self.format.deliver_shape(shape)
        is_known = self._block is not None or row in self._shapes
        has_changed = not is_known or self._find_shape(row) != delivered
        if has_changed:
            self._shapes[row] = delivered
        if self._memory is None:
            return False
        if has_changed:
            slot, layout = self._memory.allocate(delivered, dtype), self.format.layout
            self._own[row] = slot if layout is None else to_steps(slot, layout)
        return True

    def begin_all(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Return None: `begin_each` allocates equal slots, too."""

    def begin_each(
        self, channels: int, sizes: NDArray[np.int64], dtype: torch.dtype
    ) -> UnequalSlots | None:
        """Record the size of each image of the batch, and allocate all slots.

        Args:
            channels: The number of channels.
            sizes: [height, width] of each image, (B, 2).
            dtype: The dtype to deliver.

        Returns:
            The slots, for the extension. None if the buffer has no memory, or if a sample began
            before.
        """
        if self._memory is None or self._own or self._block is not None:
            return None
        order = self.format.deliver_shape((0, 1, 2))  # of CHW, HWC or HW: images have no other
        is_interleaved = order == (1, 2, 0)
        shapes = np.insert(sizes, 0, channels, 1)
        self._all_shapes = shapes if order == (0, 1, 2) else shapes[:, order]
        if self._pad_to is None:
            self._ends = shapes.prod(1).cumsum().tolist()
            whole = [self._ends[-1]]
        else:
            sides = -(-sizes.max(0) // self._pad_to) * self._pad_to
            whole = [self._count, channels, *sides.tolist()]
        self._block, self._array = self._memory.allocate_with_array(tuple(whole), dtype)
        return self._array, sizes, channels, is_interleaved

    def has_slot(self, row: int) -> bool:
        """Return whether a sample has a slot; False before `begin` was called for it."""
        return self._block is not None or row in self._own

    def slot(self, row: int) -> torch.Tensor:
        """Return the slot of a sample, in the order of axes of steps. The sample must have one."""
        if row in self._own:
            return self._own[row]
        assert self._block is not None
        return torch.from_numpy(self._find_slot(row)).view(self._block.dtype)

    def slot_array(self, row: int) -> Array:
        """Return the slot as a NumPy array; a bfloat16 slot is viewed as int16."""
        slot: Array = view_as_array(self._own[row]) if row in self._own else self._find_slot(row)
        return slot

    def _find_slot(self, row: int) -> Array:
        """Return a slot in the tensor of `begin_each`, with zeros beyond the end of its image."""
        shape, layout = self._find_shape(row), self.format.layout
        if self._pad_to is not None:
            padded: Array = self._array[row]
            _, height, width = shape
            padded[:, height:] = 0
            padded[:, :height, width:] = 0
            return padded[:, :height, :width]
        slot = self._array[self._ends[row] - prod(shape) : self._ends[row]].reshape(shape)
        return slot if layout is None else view_as_array(to_steps(torch.from_numpy(slot), layout))

    def is_padded(self, rows: Sequence[int]) -> bool:
        """Return whether `take(rows)` is a padded tensor."""
        return self._pad_to is not None and self._is_block(rows)

    def take(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the samples in `rows`. Each of them must have a slot.

        Returns:
            The padded tensor (B, C, H, W) if `is_padded`; else the elements of all samples, one
            sample after the other, (elements,).
        """
        if self._block is not None and self._is_block(rows):
            return self._block
        slots, layout = [self.slot(row) for row in rows], self.format.layout
        return flatten(slots if layout is None else [from_steps(s, layout) for s in slots])

    def _is_block(self, rows: Sequence[int]) -> bool:
        """Return whether samples are all that the tensor of `begin_each` holds."""
        return self._block is not None and not self._own and len(rows) == self._count
