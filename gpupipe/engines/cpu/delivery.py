"""Where the samples of a batch are delivered: their places in the memory of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.batch_memory import BatchMemory
from gpupipe.pipeline.tensors import from_steps


@dataclass(frozen=True)
class Form:
    """How a field is delivered.

    Attributes:
        dtype: The dtype; None keeps the dtype that the steps make.
        layout: The axes of an array that is no image, such as "HWC"; None for image files.
        channels_last: Whether images have the strides of channels_last.
    """

    dtype: str | None
    layout: str | None
    channels_last: bool


class Destination:
    """The tensor (B, ...) of one field of a batch. The first sample that is delivered makes it.

    Args:
        count: Number of samples in the batch.
        form: How the field is delivered.
        memory: Where the memory comes from; None if nothing is delivered.

    Attributes:
        shapes: The shape of each sample that was delivered, by its row.
        batch: The tensor; None before the first sample.
        conversion: What a kernel keeps for all samples; None before the first.
    """

    def __init__(self, count: int, form: Form, memory: BatchMemory | None) -> None:
        self.form = form
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.batch: torch.Tensor | None = None
        self.conversion: Any = None
        self._array = np.empty(0)
        self._count, self._memory, self._lock = count, memory, Lock()

    def dtype(self, own: torch.dtype) -> torch.dtype:
        """Return the dtype to deliver, for samples of dtype `own`."""
        return own if self.form.dtype is None else getattr(torch, self.form.dtype)

    def place(self, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return the part of the batch that belongs to a sample.

        Args:
            row: The sample's position in the batch.
            shape: Its shape: (C, H, W) for an image.
            dtype: The dtype to deliver.

        Returns:
            The part, or None if nothing is delivered or the samples differ in shape.
        """
        has_place = self._has_place(row, shape, dtype)
        return self.batch[row] if has_place and self.batch is not None else None

    def place_array(
        self, row: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> NDArray[Any] | None:
        """Return what `place` returns as an array. The bits of bfloat16 are an int16."""
        return self._array[row] if self._has_place(row, shape, dtype) else None

    def _has_place(self, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Note the shape of a sample, and return whether it is delivered with the others."""
        self.shapes[row] = shape
        if self._memory is None:
            return False
        if self.batch is None:
            with self._lock:
                if self.batch is None:
                    batch = self._allocate(self._memory, shape, dtype)
                    self._array = view_as_array(batch)
                    self.batch = batch
        return self._array.shape[1:] == shape

    def take(self, rows: list[int]) -> torch.Tensor:
        """Return the tensor (B, ...) of some rows, which have places of one shape."""
        assert self.batch is not None
        return self.batch if len(rows) == self._count else self.batch[rows]

    def _allocate(
        self, memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        if self.form.channels_last and len(shape) == 3:
            channels, height, width = shape
            packed = memory.allocate((self._count, height, width, channels), dtype)
            return packed.permute(0, 3, 1, 2)
        return memory.allocate((self._count, *shape), dtype)


def view_as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a view; NumPy has no bfloat16."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def deliver(tensor: torch.Tensor, destination: Destination, row: int) -> None:
    """Copy a sample to its place, and convert its dtype.

    Args:
        tensor: The sample: (C, H, W), the axes of an array in the order of steps, or bytes.
        destination: The field of the batch.
        row: The sample's position in the batch.
    """
    layout = destination.form.layout
    sample = tensor if layout is None else from_steps(tensor, layout)
    place = destination.place(row, tuple(sample.shape), destination.dtype(sample.dtype))
    if place is not None:
        place.copy_(sample)
