"""Converts tensors to bytes and back, without a copy if possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from gpupipe.protocol.batch_layout import PART_LIMIT, TensorField, offsets

if TYPE_CHECKING:
    from torch import Tensor


_TO_CHANNELS_LAST = (0, 2, 3, 1)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)


def fields_of(batch: Mapping[str, Tensor]) -> list[TensorField]:
    """Describe the tensors of a batch as the fields of a message."""
    return [
        TensorField(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), _channels_last(t))
        for name, t in batch.items()
    ]


def _channels_last(tensor: Tensor) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def views(memory: Tensor, fields: Sequence[TensorField]) -> dict[str, Tensor]:
    """Return the fields of a batch as tensors that share the memory of a uint8 tensor.

    Raises MalformedMessage for an unknown dtype.
    """
    tensors = {}
    for field, start in zip(fields, offsets(fields)[0], strict=True):
        elements = memory[start : start + field.nbytes].view(getattr(torch, field.dtype))
        if field.channels_last:
            tensors[field.name] = elements.view(
                [field.shape[axis] for axis in _TO_CHANNELS_LAST]
            ).permute(_TO_CHANNELS_FIRST)
        else:
            tensors[field.name] = elements.view(field.shape)
    return tensors


def fill(memory: Tensor, batch: Mapping[str, Tensor]) -> None:
    """Copy a batch from any device into a uint8 tensor in host memory."""
    for name, into in views(memory, fields_of(batch)).items():
        into.copy_(batch[name])


def pieces(batch: Mapping[str, Tensor]) -> list[tuple[int, memoryview]]:
    """Split a batch into pieces of at most PART_LIMIT bytes.

    Returns:
        (offset in the batch, bytes) of each piece. The memoryviews keep their tensors alive.
    """
    fields = fields_of(batch)
    chunks = []
    for field, start in zip(fields, offsets(fields)[0], strict=True):
        tensor = batch[field.name].cpu()
        flat = (
            (tensor.permute(_TO_CHANNELS_LAST) if field.channels_last else tensor.contiguous())
            .view(-1)
            .view(torch.uint8)
        )
        data = memoryview(flat.numpy().data)
        chunks += [(start + n, data[n : n + PART_LIMIT]) for n in range(0, len(data), PART_LIMIT)]
    return chunks
