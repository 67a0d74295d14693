"""Slots of unequal shapes, in one tensor that is flat or padded, or each in memory of its own."""

import numpy as np
import pytest
import torch

from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu.unequal_buffer import UnequalBuffer
from gpupipe.runtime.batch_memory import BatchMemory

IMAGES = DeliveryFormat(None, None, False)
SHAPES = [(3, 4, 5), (3, 7, 2), (3, 1, 6)]
SIZES = np.array([shape[1:] for shape in SHAPES])


def dirty_memory() -> BatchMemory:
    """Return a pool whose next block holds ones."""
    memory = BatchMemory(1)
    memory.allocate((3, 3, 8, 8), torch.float32).fill_(1)
    return memory


def write_numbers(buffer: UnequalBuffer) -> None:
    for n in range(3):
        buffer.slot_array(n)[...] = n + 2


def test_all_slots_are_parts_of_one_flat_tensor() -> None:
    buffer = UnequalBuffer(3, IMAGES, BatchMemory(1))
    slots = buffer.begin_each(3, SIZES, torch.float32)
    assert slots is not None
    assert slots[0].shape == (120,)
    assert [buffer.slot_array(n).shape for n in range(3)] == SHAPES
    write_numbers(buffer)
    values = buffer.take(range(3))
    assert values.tolist() == [2.0] * 60 + [3.0] * 42 + [4.0] * 18
    assert values.data_ptr() == buffer.slot(0).data_ptr(), "nothing is copied"
    assert not buffer.is_padded(range(3))
    assert np.asarray(buffer.list_shapes([2, 0])).tolist() == [[3, 1, 6], [3, 4, 5]]
    assert buffer.take([2, 0]).tolist() == [4.0] * 18 + [2.0] * 60


@pytest.mark.parametrize(("pad_to", "sides"), [(1, (7, 6)), (4, (8, 8))])
def test_padded_images_end_in_zeros_whatever_the_memory_held(
    pad_to: int, sides: tuple[int, int]
) -> None:
    buffer = UnequalBuffer(3, IMAGES, dirty_memory(), pad_to)
    buffer.begin_each(3, SIZES, torch.float32)
    write_numbers(buffer)
    assert buffer.is_padded(range(3))
    batch = buffer.take(range(3))
    assert batch.shape == (3, 3, *sides)
    for n, (_, high, wide) in enumerate(SHAPES):
        assert (batch[n, :, :high, :wide] == n + 2).all()
        assert int((batch[n] != 0).sum()) == 3 * high * wide


def test_without_one_of_the_padded_images_the_others_are_delivered_flat() -> None:
    buffer = UnequalBuffer(3, IMAGES, dirty_memory(), 4)
    buffer.begin_each(3, SIZES, torch.float32)
    write_numbers(buffer)
    assert not buffer.is_padded([0, 2])
    assert buffer.take([0, 2]).tolist() == [2.0] * 60 + [4.0] * 18


@pytest.mark.parametrize("pad_to", [None, 1])
def test_an_image_of_another_size_than_expected_gets_memory_of_its_own(pad_to: int | None) -> None:
    buffer = UnequalBuffer(3, IMAGES, BatchMemory(3), pad_to)
    buffer.begin_each(3, SIZES, torch.float32)
    assert buffer.begin(0, (3, 4, 5), torch.float32), "it keeps its slot"
    assert buffer.begin(1, (3, 2, 2), torch.float32)
    write_numbers(buffer)
    assert not buffer.is_padded(range(3))
    assert buffer.take(range(3)).tolist() == [2.0] * 60 + [3.0] * 12 + [4.0] * 18
    assert buffer.list_shapes(range(3)) == [(3, 4, 5), (3, 2, 2), (3, 1, 6)]


@pytest.mark.parametrize("pad_to", [None, 1])
def test_images_of_the_expected_size_stay_in_the_common_tensor(pad_to: int | None) -> None:
    buffer = UnequalBuffer(3, IMAGES, BatchMemory(3), pad_to)
    slots = buffer.begin_each(3, SIZES, torch.float32)
    assert slots is not None
    assert buffer.begin_each(3, SIZES, torch.float32) is None, "they have slots"
    assert all(buffer.begin(n, shape, torch.float32) for n, shape in enumerate(SHAPES))
    assert buffer.take(range(3)).data_ptr() == slots[0].ctypes.data


def test_slots_of_bfloat16_are_written_as_bits() -> None:
    one = np.array(1.0, np.float32).view(np.int32) >> 16
    buffer = UnequalBuffer(3, IMAGES, BatchMemory(1), 1)
    buffer.begin_each(3, SIZES, torch.bfloat16)
    for n in range(3):
        slot = buffer.slot_array(n)
        assert slot.dtype == np.int16
        slot[...] = one
    assert (buffer.slot(1) == 1.0).all()
    assert buffer.slot(1).dtype == buffer.take(range(3)).dtype == torch.bfloat16


def test_arrays_are_written_in_the_order_of_steps_and_delivered_in_their_own() -> None:
    buffer = UnequalBuffer(2, DeliveryFormat(None, "HWC", False), BatchMemory(1))
    slots = buffer.begin_each(2, np.array([[1, 3], [2, 2]]), torch.uint8)
    assert slots is not None
    assert slots[3], "it is interleaved"
    buffer.slot_array(0)[...] = np.arange(6).reshape(2, 1, 3)
    buffer.slot_array(1)[...] = np.arange(8).reshape(2, 2, 2)
    assert np.asarray(buffer.list_shapes(range(2))).tolist() == [[1, 3, 2], [2, 2, 2]]
    expected = [0, 3, 1, 4, 2, 5, 0, 4, 1, 5, 2, 6, 3, 7]
    assert buffer.take(range(2)).tolist() == expected
    assert buffer.take([1]).tolist() == expected[6:]


def test_nothing_is_delivered_without_memory() -> None:
    buffer = UnequalBuffer(2, IMAGES, None)
    assert buffer.begin_each(3, SIZES[:2], torch.uint8) is None
    assert not buffer.begin(1, SHAPES[1], torch.uint8)
    assert not buffer.has_slot(1)
    assert buffer.list_shapes([1]) == [SHAPES[1]]
