"""Where the fields of a batch lie, and batches as bytes and back."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.protocol import batch_bytes
from gpupipe.protocol.batch_bytes import (
    ELEMENT_SIZES,
    MalformedMessage,
    TensorField,
    fields_of,
    fill,
    offsets,
    pieces,
    views,
)

DTYPES = [getattr(torch, name) for name in ELEMENT_SIZES]


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
    size = batch_bytes.offsets(fields)[1]
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
    packed = batch_bytes.compress(codec, bytes(batch_bytes.PART_LIMIT))
    assert packed is not None
    for size in (1, batch_bytes.PART_LIMIT - 1, batch_bytes.PART_LIMIT + 1):
        with pytest.raises(batch_bytes.MalformedMessage, match=r"piece"):
            batch_bytes.decompress(codec, packed, size)
    with pytest.raises(batch_bytes.MalformedMessage, match="cannot be unpacked"):
        batch_bytes.decompress(codec, b"\x00\x01garbage", 100)


def test_sizes_of_elements_are_those_of_torch() -> None:
    for name, size in ELEMENT_SIZES.items():
        assert getattr(torch, name).itemsize == size


def test_fields_follow_one_another_aligned() -> None:
    fields = [
        TensorField("image", "uint8", (3, 5), False),
        TensorField("empty", "float32", (0, 7), False),
        TensorField("label", "int64", (8,), False),
        TensorField("id", "int64", (1,), False),
    ]
    assert offsets(fields) == ([0, 64, 64, 128], 136)
    assert offsets([]) == ([], 0)


def test_what_has_no_size_is_refused() -> None:
    for dtype, shape, channels_last in [("object", (1,), False), ("uint8", (1, 2, 3), True)]:
        field = TensorField("a", dtype, shape, channels_last)
        with pytest.raises(MalformedMessage, match="field 'a' has dtype"):
            offsets([field])


def test_empty_arrays_of_numpy_come_through_too() -> None:
    rows = torch.from_numpy(np.zeros((0, 5), np.int64)[np.zeros(0, np.int64)])
    batch = {"rows": rows, "after": torch.arange(3)}
    memory = torch.zeros(offsets(fields_of(batch))[1], dtype=torch.uint8)
    for start, data in pieces(batch):
        memory.numpy().data[start : start + len(data)] = data
    back = views(memory, fields_of(batch))
    assert back["rows"].shape == (0, 5)
    assert back["after"].tolist() == [0, 1, 2]
