"""Slots of shared memory, and buffers that are reused."""

import gc
import os

import pytest
import torch

from gpupipe.protocol.batch_bytes import MalformedMessage
from gpupipe.protocol.shared_memory import Buffers, Mapped, Slots, cuda_last_error

SIZE = 10_000


def test_a_slot_is_seen_from_the_other_side_and_given_back() -> None:
    slots, mapped = Slots(1), Mapped(os.getpid())
    taken = slots.take(SIZE)
    assert taken is not None
    slot, memory = taken
    memory[:SIZE] = torch.arange(SIZE) % 251
    seen = mapped.tensor(slot, SIZE)
    kept = seen[7:9]
    assert torch.equal(seen, torch.arange(SIZE).remainder(251).to(torch.uint8))
    assert slots.take(SIZE) is None, "the client holds as many as it may"
    del seen
    gc.collect()
    assert not mapped.freed, "a part of it is still held"
    del kept
    gc.collect()
    assert list(mapped.freed) == [slot.number]
    slots.release(mapped.freed.popleft())
    again = slots.take(SIZE)
    assert again is not None
    assert again[0] == slot, "memory is used again"
    slots.close()


def test_a_slot_that_was_closed_is_not_taken_for_the_one_that_has_its_number_now() -> None:
    """Descriptors of closed files are given to new ones."""
    first, second, mapped = Slots(1), Slots(1), Mapped(os.getpid())
    old = first.take(SIZE)
    assert old is not None
    first.close()
    new = second.take(SIZE)
    assert new is not None
    assert (new[0].fd, new[0].size) == (old[0].fd, old[0].size), (
        "so that only the name tells them apart"
    )
    with pytest.raises(MalformedMessage, match="is not slot"):
        mapped.tensor(old[0], SIZE)
    mapped.tensor(new[0], SIZE)
    second.close()
    with pytest.raises(MalformedMessage):
        Mapped(os.getpid()).tensor(new[0], SIZE)


def test_a_file_that_is_no_slot_is_not_mapped() -> None:
    slots = Slots(1)
    taken = slots.take(SIZE)
    assert taken is not None
    with open(os.devnull) as other, pytest.raises(MalformedMessage, match="is not slot"):
        Mapped(os.getpid()).tensor(taken[0]._replace(fd=other.fileno()), SIZE)
    with pytest.raises(MalformedMessage, match="were announced"):
        Mapped(os.getpid()).tensor(taken[0]._replace(size=taken[0].size * 2), SIZE)
    slots.close()


def test_a_buffer_is_used_again_only_when_its_tensors_are_gone() -> None:
    buffers = Buffers(2)
    first = buffers.take(SIZE)
    address, part = first.data_ptr(), first[5:]
    del first
    gc.collect()
    second = buffers.take(SIZE)
    assert second.data_ptr() != address
    del part
    gc.collect()
    assert buffers.take(SIZE).data_ptr() == address


def test_the_last_error_is_that_of_the_cuda_runtime_that_torch_uses() -> None:
    """Without a GPU every call fails, which serves as well."""
    if not hasattr(torch._C, "_cudart"):
        pytest.skip("torch was built without CUDA")
    last_error = cuda_last_error()
    assert last_error is not None
    last_error()
    failed = torch._C._cudart.cudaHostRegister(0, 0, 0)
    assert last_error() == int(failed) != 0
