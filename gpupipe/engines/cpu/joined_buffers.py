"""The buffers of views with equal steps, joined to one buffer that one program writes to."""

from collections.abc import Sequence

import torch

from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.pixels import Array
from gpupipe.engines.cpu.unequal_buffer import UnequalBuffer


class JoinedBuffers:
    """The buffers of several fields, such as copies of a view, as one buffer with more rows.

    Args:
        buffers: Buffers of equally many samples, B, which are delivered alike. Row n * B + r is row
            r of buffer n.
        count: The number of samples of each buffer.
    """

    def __init__(self, buffers: Sequence[OutputBuffer | UnequalBuffer], count: int) -> None:
        self._buffers, self._count = buffers, count

    @property
    def format(self) -> DeliveryFormat:
        return self._buffers[0].format

    def begin(self, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Record the shape of a sample; return whether it has a slot: see OutputBuffer.begin."""
        buffer, row = self._find(row)
        return buffer.begin(row, shape, dtype)

    def begin_all(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Array] | None:
        """Record one shape for all samples; return an array (B, ...) of each buffer.

        Return None if a buffer has none: see OutputBuffer.begin_all.
        """
        batches = [buffer.begin_all(shape, dtype) for buffer in self._buffers]
        arrays = [batch for batch in batches if batch is not None]
        return arrays if len(arrays) == len(batches) else None

    def has_slot(self, row: int) -> bool:
        buffer, row = self._find(row)
        return buffer.has_slot(row)

    def slot(self, row: int) -> torch.Tensor:
        buffer, row = self._find(row)
        return buffer.slot(row)

    def slot_array(self, row: int) -> Array:
        buffer, row = self._find(row)
        return buffer.slot_array(row)

    def _find(self, row: int) -> tuple[OutputBuffer | UnequalBuffer, int]:
        return self._buffers[row // self._count], row % self._count


Output = OutputBuffer | UnequalBuffer | JoinedBuffers
"""What the last kernel of a program writes to."""
