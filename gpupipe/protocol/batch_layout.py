"""The layout of a batch in memory: the bytes of its fields, one after another, each aligned.

Both sides compute it from the list of fields. The sizes that a peer declares are checked against it
before memory is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

PART_LIMIT = 1 << 20
"""Most bytes of a batch in one BatchPart. Many small messages are twice as fast as a large one,
since their memory is reused.
"""
_ALIGNMENT = 64

ELEMENT_SIZES = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
"""Dtypes that can be sent, by their names in torch, and the size of an element in bytes."""

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Text = Annotated[str, Meta(max_length=300)]


class MalformedMessage(Exception):
    """A received message is invalid; the text says why."""


class TensorField(NamedTuple):
    """A tensor of a batch.

    Attributes:
        name: Name of the field, such as "image".
        dtype: A key of ELEMENT_SIZES.
        shape: Shape of the tensor.
        channels_last: The shape is (B, C, H, W), but the elements lie in memory as (B, H, W, C).
    """

    name: Text
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=8)]
    channels_last: bool

    @property
    def nbytes(self) -> int:
        """Size in bytes. Raises MalformedMessage for an unknown dtype."""
        if self.dtype not in ELEMENT_SIZES or (self.channels_last and len(self.shape) != 4):
            raise MalformedMessage(
                f"field '{self.name}' has dtype '{self.dtype}' and shape {self.shape}"
            )
        return math.prod(self.shape) * ELEMENT_SIZES[self.dtype]


class Slot(NamedTuple):
    """A slot of shared memory.

    Attributes:
        number: Identifies the slot.
        fd: Descriptor of its file in the server's process.
        size: Size in bytes.
    """

    number: Count
    fd: Count
    size: Count


def offsets(fields: Sequence[TensorField]) -> tuple[list[int], int]:
    """Return the offset of each field in a batch, and the size of the batch, in bytes.

    Raises MalformedMessage for an unknown dtype.
    """
    starts, end = [], 0
    for field in fields:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        starts.append(start)
        end = start + field.nbytes
    return starts, end
