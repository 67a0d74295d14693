"""Converts the tensors of a batch to bytes and back, without a copy if possible.

It compresses pieces of a batch with lz4 or zstd, if their packages are installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gpupipe.errors import ServerError
from gpupipe.protocol.batch_layout import PART_LIMIT, MalformedMessage, TensorField, offsets

_TO_CHANNELS_LAST = (0, 2, 3, 1)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)
_MODULES = {"lz4": "lz4.block", "zstd": "zstandard"}
CODECS = tuple(_MODULES)
_ZSTD_LEVEL = 1


def fields_of(batch: Mapping[str, Tensor]) -> list[TensorField]:
    """Return the name, dtype, shape and memory format of each tensor of a batch."""
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
    """Return the tensors of a batch, by field name, as views of its bytes `memory` (uint8).

    Raises MalformedMessage if a field has an unknown dtype, or is channels_last and not 4-D.
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
    """Copy the tensors of a batch, from any device, into `memory`: a uint8 tensor on the host."""
    for name, into in views(memory, fields_of(batch)).items():
        into.copy_(batch[name])


def pieces(batch: Mapping[str, Tensor]) -> list[tuple[int, memoryview]]:
    """Split the bytes of a batch into pieces of at most PART_LIMIT bytes.

    Returns:
        (byte offset of the piece in the batch, bytes of the piece) for each piece. The memoryviews
        keep their tensors alive.
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
