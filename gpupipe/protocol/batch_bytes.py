"""The bytes of a batch: the layout of its fields, its tensors as bytes and back, and compression.

The fields lie one after another, each aligned. Server and client both compute this layout from the
list of fields. Before the client allocates memory for a batch, it checks the declared size against
the layout. Tensors become bytes without a copy if possible. Pieces of a batch are compressed with
lz4 or zstd, if their packages are installed.

`gpupipe status` imports this file without torch, which takes seconds to import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta

from gpupipe.errors import ServerError

if TYPE_CHECKING:
    from torch import Tensor

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

_TO_CHANNELS_LAST = (0, 2, 3, 1)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)
_MODULES = {"lz4": "lz4.block", "zstd": "zstandard"}
CODECS = tuple(_MODULES)
_ZSTD_LEVEL = 1

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
        channels_last: If true, `shape` is (B, C, H, W), but the memory is laid out (B, H, W, C).
    """

    name: Text
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=8)]
    channels_last: bool

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes.

        Raises MalformedMessage if the dtype is unknown, or a channels_last tensor is not 4-D.
        """
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


# --- tensors as bytes


def fields_of(batch: Mapping[str, Tensor]) -> list[TensorField]:
    """Return the name, dtype, shape and memory format of each tensor of a batch."""
    return [
        TensorField(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), _channels_last(t))
        for name, t in batch.items()
    ]


def _channels_last(tensor: Tensor) -> bool:
    import torch

    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def views(memory: Tensor, fields: Sequence[TensorField]) -> dict[str, Tensor]:
    """Return the tensors of a batch, by field name, as views of its bytes `memory` (uint8).

    Raises MalformedMessage if a field has an unknown dtype, or is channels_last and not 4-D.
    """
    import torch

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
    """Copy the tensors of a batch, on any device, into `memory`, a uint8 tensor on the host."""
    for name, into in views(memory, fields_of(batch)).items():
        into.copy_(batch[name])


def pieces(batch: Mapping[str, Tensor]) -> list[tuple[int, memoryview]]:
    """Split the bytes of a batch into pieces of at most PART_LIMIT bytes.

    Returns:
        (byte offset of the piece in the batch, bytes of the piece) for each piece. The memoryviews
        keep their tensors alive.
    """
    import torch

    fields = fields_of(batch)
    chunks = []
    for field, start in zip(fields, offsets(fields)[0], strict=True):
        tensor = batch[field.name].cpu()
        if not tensor.numel():
            continue  # torch refuses to view the bytes of some empty tensors
        flat = (
            (tensor.permute(_TO_CHANNELS_LAST) if field.channels_last else tensor.contiguous())
            .view(-1)
            .view(torch.uint8)
        )
        data = memoryview(flat.numpy().data)
        chunks += [(start + n, data[n : n + PART_LIMIT]) for n in range(0, len(data), PART_LIMIT)]
    return chunks


# --- compression of pieces


@cache
def _module(codec: str) -> Any:
    try:
        return import_module(_MODULES[codec])
    except ModuleNotFoundError:
        return None


def installed_codecs() -> tuple[str, ...]:
    """Return the codecs whose packages are installed, in the order of CODECS."""
    return tuple(codec for codec in CODECS if _module(codec) is not None)


def check_codec(codec: str) -> None:
    """Raise ServerError if the package of a codec is not installed."""
    if codec not in installed_codecs():
        package = _MODULES[codec].partition(".")[0]
        raise ServerError(
            f"compression with {codec} needs the package {package}: pip install {package}"
        )


def compress(codec: str, data: Any) -> bytes | None:
    """Compress a piece of a batch. Return None if the result is not smaller than `data`."""
    module = _module(codec)
    packed: bytes = (
        module.compress(data, store_size=False)
        if codec == "lz4"
        else module.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
    )
    return packed if len(packed) < len(data) else None


def decompress(codec: str, data: Any, size: int) -> Any:
    """Decompress a piece of a batch.

    Args:
        codec: The codec, or "" for a piece that is not compressed.
        data: The bytes of the piece, as any bytes-like object.
        size: Exact number of bytes of the result.

    Raises:
        MalformedMessage: The codec is unknown or not installed, the codec cannot decompress
            `data`, or the result does not have `size` bytes.
    """
    if codec not in ("", *installed_codecs()):
        raise MalformedMessage(f"a piece is packed with {codec!r}")
    try:
        if codec == "lz4":
            data = _module(codec).decompress(data, uncompressed_size=size)
        elif codec == "zstd":
            decompressor = _module(codec).ZstdDecompressor(max_window_size=1 << 23)
            with decompressor.stream_reader(data) as reader:
                data = reader.read(size + 1)  # one byte more than `size`, to detect a longer result
    except Exception as e:  # each package raises its own errors, without a common base class
        raise MalformedMessage(f"a piece cannot be unpacked: {e}") from None
    if len(data) != size:
        raise MalformedMessage(f"a piece of {len(data)} bytes, where {size} were announced")
    return data
