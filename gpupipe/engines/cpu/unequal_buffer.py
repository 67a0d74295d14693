"""The memory of one field of a batch whose samples may differ in shape: see `loader.shapes`."""

from collections.abc import Sequence
from math import prod

import torch

from gpupipe.engines.batch import DeliveryFormat, flatten
from gpupipe.engines.cpu.pixels import Array, view_as_array
from gpupipe.pipeline.tensors import from_steps, to_steps
from gpupipe.runtime.batch_memory import BatchMemory


class UnequalBuffer:
    """The slots of one field of a batch, each of a shape of its own.

    If all shapes are known before a kernel runs, `begin_each` allocates one tensor for all slots.
    Otherwise each `begin` allocates the slot of its sample.

    Args:
        count: Number of samples in the batch.
        format: How the field is delivered.
        memory: The pool that allocates the slots; None if nothing is delivered.
        pad_to: `begin_each` allocates a tensor (B, C, H, W), whose H and W are multiples of this
            number, and `clear_borders` writes zeros beyond the end of each image; None for a flat
            tensor.

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
        self._joined: list[Array] = []
        """The slot (1, ...) of each sample in that tensor."""
        self._borders: list[Array] = []
        """What is below and to the right of each image in a padded tensor."""

    def list_shapes(self, rows: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the delivered shapes of samples. `begin` must have recorded each."""
        return [self._shapes[row] for row in rows]

    def begin(self, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Record the shape of a sample; return whether it has a slot: see OutputBuffer.begin."""
        delivered = self.format.deliver_shape(shape)
        has_changed = self._shapes.get(row) != delivered
        self._shapes[row] = delivered
        if self._memory is None:
            return False
        if has_changed or not self.has_slot(row):
            slot, layout = self._memory.allocate(delivered, dtype), self.format.layout
            self._own[row] = slot if layout is None else to_steps(slot, layout)
        return True

    def begin_all(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Return None: `begin_each` allocates equal slots, too."""

    def begin_each(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[Array]:
        """Record the shape of each sample of the batch, and allocate all slots.

        Returns:
            The slot (1, ...) of each sample as an array, bfloat16 as int16; [] if the buffer has no
            memory, or if a sample began before.
        """
        if self._memory is None or self._own or self._joined:
            return []
        delivered = [self.format.deliver_shape(shape) for shape in shapes]
        self._shapes = dict(enumerate(delivered))
        join = self._join_flat if self._pad_to is None else self._join_padded
        self._joined = join(self._memory, delivered, dtype)
        return self._joined

    def _join_flat(
        self, memory: BatchMemory, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
    ) -> list[Array]:
        counts, layout, slots, end = [prod(shape) for shape in shapes], self.format.layout, [], 0
        self._block, array = memory.allocate_with_array((sum(counts),), dtype)
        for shape, count in zip(shapes, counts, strict=True):
            slot = array[end : end + count].reshape(1, *shape)
            end += count
            if layout is not None:
                slot = to_steps(torch.from_numpy(slot), layout, axes_before=1).numpy()
            slots.append(slot)
        return slots

    def _join_padded(
        self, memory: BatchMemory, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
    ) -> list[Array]:
        channels, *sides = (max(axis) for axis in zip(*shapes, strict=True))
        high, wide = (-(-side // self._pad_to) * self._pad_to for side in sides)
        whole = len(shapes), channels, high, wide
        self._block, array = memory.allocate_with_array(whole, dtype)
        slots = []
        for n, (_, height, width) in enumerate(shapes):
            slots.append(array[n : n + 1, :, :height, :width])
            self._borders += array[n, :, height:], array[n, :, :height, width:]
        return slots

    def clear_borders(self, rows: range) -> None:
        """Write zeros beyond the ends of images that `begin_each` pads."""
        borders = self._borders[2 * rows.start : 2 * rows.stop]
        if parts := [torch.from_numpy(border) for border in borders if border.size]:
            # In one call: after each large write, Python's code and objects are out of the caches.
            torch._foreach_zero_(parts)

    def has_slot(self, row: int) -> bool:
        """Return whether a sample has a slot; False before `begin` was called for it."""
        return bool(self._joined) or row in self._own

    def slot(self, row: int) -> torch.Tensor:
        """Return the slot of a sample, in the order of axes of steps. The sample must have one."""
        if row in self._own:
            return self._own[row]
        assert self._block is not None
        return torch.from_numpy(self._joined[row][0]).view(self._block.dtype)

    def slot_array(self, row: int) -> Array:
        """Return the slot as a NumPy array; a bfloat16 slot is viewed as int16."""
        slot: Array = view_as_array(self._own[row]) if row in self._own else self._joined[row][0]
        return slot

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
        return bool(self._joined) and not self._own and len(rows) == self._count
