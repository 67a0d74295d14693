"""The memory of one field of a batch, in which each sample has a slot."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch

from gpupipe.engines.batch import BatchMemory
from gpupipe.engines.cpu.pixels import Array, view_as_array


@dataclass(frozen=True)
class DeliveryFormat:
    """How a field is delivered.

    Attributes:
        dtype: The dtype; None keeps the dtype that the steps make.
        layout: The axes of an array that is no image, such as "HWC"; None for image files.
        channels_last: Whether images have the strides of channels_last.
    """

    dtype: str | None
    layout: str | None
    channels_last: bool


class OutputBuffer:
    """The tensor (B, ...) of one field of a batch.

    A sample begins with `begin`, and then writes into its slot. The first sample allocates the
    memory, since no shape is certain before a file was decoded.

    Args:
        count: Number of samples in the batch.
        format: How the field is delivered.
        memory: Where the memory comes from; None if nothing is delivered.

    Attributes:
        format: How the field is delivered.
        shapes: The shape of each sample that began, by its row.
    """

    def __init__(self, count: int, format: DeliveryFormat, memory: BatchMemory | None) -> None:
        self.format = format
        self.shapes: dict[int, tuple[int, ...]] = {}
        self._batch: torch.Tensor | None = None
        self._array: Array = np.empty(0)
        self._count, self._memory, self._lock = count, memory, Lock()

    @property
    def is_allocated(self) -> bool:
        """Whether a sample has decided the shape of the batch."""
        return self._batch is not None

    def begin(self, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Note the shape of a sample; the first call allocates the memory.

        Args:
            row: The sample's position in the batch.
            shape: Its shape: (C, H, W) for an image.
            dtype: The dtype to deliver.

        Returns:
            Whether the sample has a slot. It has none if nothing is delivered, or if the samples
            differ in shape.
        """
        self.shapes[row] = shape
        if self._memory is None:
            return False
        if self._batch is None:
            with self._lock:
                if self._batch is None:
                    batch = self._allocate(self._memory, shape, dtype)
                    self._array = view_as_array(batch)
                    self._batch = batch
        return self._array.shape[1:] == shape

    def has_slot(self, row: int) -> bool:
        """Return what `begin` returned for a sample; False before that."""
        return self._batch is not None and self.shapes.get(row) == self._array.shape[1:]

    def slot(self, row: int) -> torch.Tensor:
        """Return the part of the batch that belongs to a sample that has a slot."""
        assert self._batch is not None
        return self._batch[row]

    def slot_array(self, row: int) -> Array:
        """Return the slot as an array. The bits of bfloat16 are an int16."""
        slot: Array = self._array[row]
        return slot

    def take(self, rows: list[int]) -> torch.Tensor:
        """Return the tensor (B, ...) of some rows, which have slots of one shape."""
        assert self._batch is not None
        return self._batch if len(rows) == self._count else self._batch[rows]

    def _allocate(
        self, memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        if self.format.channels_last and len(shape) == 3:
            channels, height, width = shape
            packed = memory.allocate((self._count, height, width, channels), dtype)
            return packed.permute(0, 3, 1, 2)
        return memory.allocate((self._count, *shape), dtype)
