"""Batches as bytes and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.protocol import batch_bytes, batch_layout
from gpupipe.protocol.batch_bytes import fields_of, fill, pieces, views

DTYPES = [getattr(torch, name) for name in batch_layout.ELEMENT_SIZES]


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(
        st.tuples(
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 5), min_size=1, max_size=4),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["", *batch_bytes.CODECS]),
)
def test_any_batch_comes_through_in_pieces_and_in_memory(
    kinds: list[tuple[Any, list[int], bool]], codec: str
) -> None:
    batch = {}
    for n, (dtype, shape, last) in enumerate(kinds):
        tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
        batch[f"field {n}"] = (
            tensor.contiguous(memory_format=torch.channels_last)
            if last and len(shape) == 4
            else tensor
        )
    fields = fields_of(batch)
    size = batch_layout.offsets(fields)[1]
    filled, received = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    fill(filled, batch)
    for start, data in pieces(batch):
        packed = batch_bytes.compress(codec, data) if codec else None
        found = batch_bytes.decompress(
            "" if packed is None else codec, data if packed is None else packed, len(data)
        )
        memoryview(received.numpy())[start : start + len(data)] = found
    for memory in (filled, received):
        for name, tensor in views(memory, fields).items():
            assert torch.equal(tensor, batch[name])
            assert tensor.dtype == batch[name].dtype
            assert tensor.stride() == batch[name].stride() or 0 in tensor.shape or 1 in tensor.shape


@pytest.mark.parametrize("codec", batch_bytes.CODECS)
def test_a_bomb_does_not_go_off(codec: str) -> None:
    """What unpacks to more, or less, than was announced is refused."""
    packed = batch_bytes.compress(codec, bytes(batch_layout.PART_LIMIT))
    assert packed is not None
    for size in (1, batch_layout.PART_LIMIT - 1, batch_layout.PART_LIMIT + 1):
        with pytest.raises(batch_layout.MalformedMessage, match=r"piece"):
            batch_bytes.decompress(codec, packed, size)
    with pytest.raises(batch_layout.MalformedMessage, match="cannot be unpacked"):
        batch_bytes.decompress(codec, b"\x00\x01garbage", 100)
