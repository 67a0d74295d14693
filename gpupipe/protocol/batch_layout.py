"""The layout of a batch in memory: the bytes of its fields, one after another, each aligned.

Server and client both compute the layout from the list of fields. The client checks the declared
size of a batch against the layout before it allocates memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

PART_LIMIT = 1 << 20
"""Maximum size of a piece of a batch (BatchPart), in bytes. Many small messages are twice as fast
as a large one, since their memory is reused.
"""
_ALIGNMENT = 64

ELEMENT_SIZES = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
"""Size of an element in bytes, by the torch name of its dtype. No other dtype can be sent."""

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Text = Annotated[str, Meta(max_length=300)]


class MalformedMessage(Exception):
    """A received message is invalid; the text says why."""


class TensorField(NamedTuple):
    """Describes a tensor of a batch.

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
        """Size in bytes. Raises MalformedMessage if dtype is unknown or channels_last not 4-D."""
        if self.dtype not in ELEMENT_SIZES or (self.channels_last and len(self.shape) != 4):
            raise MalformedMessage(
                f"field '{self.name}' has dtype '{self.dtype}' and shape {self.shape}"
            )
        return math.prod(self.shape) * ELEMENT_SIZES[self.dtype]


class Slot(NamedTuple):
    """A slot: a block of shared memory that holds one batch at a time.

    Attributes:
        number: Identifies the slot.
        fd: File descriptor of the slot's memfd in the server's process.
        size: Size of the slot in bytes.
    """

    number: Count
    fd: Count
    size: Count


def offsets(fields: Sequence[TensorField]) -> tuple[list[int], int]:
    """Return the byte offset of each field in a batch, and the size of the batch in bytes.

    Raises MalformedMessage if a field has an unknown dtype, or is channels_last and not 4-D.
    """
    starts, end = [], 0
    for field in fields:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        starts.append(start)
        end = start + field.nbytes
    return starts, end
