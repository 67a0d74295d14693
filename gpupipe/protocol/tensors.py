"""Tensors as bytes, and bytes as tensors, without a copy where none is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from gpupipe.protocol import messages

if TYPE_CHECKING:
    from torch import Tensor


_LAST = (0, 2, 3, 1)
_FIRST = (0, 3, 1, 2)


def fields_of(batch: Mapping[str, Tensor]) -> list[messages.Field]:
    """What goes over the wire of a batch."""
    return [
        messages.Field(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), _channels_last(t))
        for name, t in batch.items()
    ]


def _channels_last(tensor: Tensor) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def views(memory: Tensor, fields: Sequence[messages.Field]) -> dict[str, Tensor]:
    """The fields that lie in a uint8 tensor: they share its memory.

    Raises wire.MalformedMessage.
    """
    found = {}
    for field, start in zip(fields, messages.offsets(fields)[0], strict=True):
        numbers = memory[start : start + field.nbytes].view(getattr(torch, field.dtype))
        if field.channels_last:
            found[field.name] = numbers.view([field.shape[axis] for axis in _LAST]).permute(_FIRST)
        else:
            found[field.name] = numbers.view(field.shape)
    return found


def fill(memory: Tensor, batch: Mapping[str, Tensor]) -> None:
    """Copy a batch into a uint8 tensor of the host, from wherever it is."""
    for name, into in views(memory, fields_of(batch)).items():
        into.copy_(batch[name])


def pieces(batch: Mapping[str, Tensor]) -> list[tuple[int, memoryview]]:
    """Where the bytes of a batch go, and they themselves: pieces of up to wire.PIECE bytes, which
    keep their tensors alive.
    """
    fields = fields_of(batch)
    found = []
    for field, start in zip(fields, messages.offsets(fields)[0], strict=True):
        tensor = batch[field.name].cpu()
        flat = (
            (tensor.permute(_LAST) if field.channels_last else tensor.contiguous())
            .view(-1)
            .view(torch.uint8)
        )
        data = memoryview(flat.numpy().data)
        found += [
            (start + n, data[n : n + messages.PIECE]) for n in range(0, len(data), messages.PIECE)
        ]
    return found
