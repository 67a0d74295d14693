"""The two forms of an image, and what has no gaps."""

import numpy as np
import pytest
import torch

from gpupipe.engines.cpu.pixels import (
    MAX_OPENCV_CHANNELS,
    Scratch,
    as_array,
    as_batch,
    as_packed,
    as_tensor,
    with_channels,
)

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def test_a_tensor_and_an_array_share_their_memory() -> None:
    pixels = PIXELS.copy()
    tensor = as_tensor(pixels)
    assert tuple(tensor.shape) == (3, 4, 5)
    assert np.array_equal(as_array(tensor), pixels)
    tensor[1, 2, 3] = 99
    assert pixels[2, 3, 1] == as_array(tensor)[2, 3, 1] == 99
    assert as_tensor(tensor) is tensor
    assert as_array(pixels) is pixels


def test_packed_pixels_have_no_gaps_and_are_copied_only_if_they_had() -> None:
    assert as_packed(PIXELS) is PIXELS
    for given in (PIXELS[:, 1:4], PIXELS[::2], torch.from_numpy(PIXELS.transpose(2, 0, 1).copy())):
        packed = as_packed(given)
        assert packed.flags.c_contiguous
        assert np.array_equal(packed, as_array(given))
        assert not np.shares_memory(packed, PIXELS)
    for channels in (5, MAX_OPENCV_CHANNELS, MAX_OPENCV_CHANNELS + 1):
        many = np.random.default_rng(0).integers(0, 256, (channels, 3, 4), np.uint8)
        assert np.array_equal(as_packed(many.transpose(1, 2, 0)), many.transpose(1, 2, 0))
    floats = PIXELS.astype(np.float32)[:, ::2]
    assert np.array_equal(as_packed(floats), floats)


def test_the_axis_of_one_channel_comes_back() -> None:
    assert with_channels(PIXELS[:, :, 0]).shape == (4, 5, 1)
    assert with_channels(PIXELS) is PIXELS


def test_an_image_and_a_batch_of_it_share_their_memory() -> None:
    pixels = PIXELS.copy()
    batch = as_batch(pixels)
    assert torch.equal(batch, as_tensor(pixels)[None])
    batch[0, 1, 2, 3] = 99
    assert pixels[2, 3, 1] == 99
    pixels.flags.writeable = False
    as_batch(pixels)[...] = 0  # a copy
    assert pixels[2, 3, 1] == 99


@pytest.mark.parametrize("count", [1, 3])
def test_arrays_of_a_sample_do_not_overlap_and_the_next_sample_takes_them(count: int) -> None:
    scratch, shape = Scratch(), (40, 50, 3)
    places: list[list[int]] = []
    for _ in range(3):
        scratch.begin_sample()
        batches = [scratch.take_batch(shape) for _ in range(count)]
        arrays = [*(array for array, _ in batches), scratch.take(shape)]
        for number, array in enumerate(arrays):
            assert array.shape == shape
            array[...] = number
        for number, (array, tensor) in enumerate(batches):
            assert tensor.data_ptr() == array.ctypes.data
            assert torch.equal(tensor, torch.full((1, 3, 40, 50), number, dtype=torch.uint8))
        places.append([array.ctypes.data for array in arrays])
    assert places[0] == places[1] == places[2]


def test_arrays_of_a_sample_do_not_overlap_after_its_memory_grew() -> None:
    scratch, shape = Scratch(), (64, 64, 3)
    size = 900_000  # two of these are more than there is
    scratch.take((size,))
    kept, _ = scratch.take_batch(shape)
    kept[...] = 1
    scratch.take((size,))
    again, _ = scratch.take_batch(shape)
    again[...] = 2
    assert (kept == 1).all()


def test_a_batch_does_not_overlap_others_after_it_needed_new_memory() -> None:
    """New memory begins elsewhere, so what was made there is not for the next sample."""
    memory = Scratch()
    for _ in range(3):
        memory.begin_sample()
        other = memory.take((900_000,))
        array, tensor = memory.take_batch((200, 500, 3))
        assert not np.shares_memory(other, array)
        assert np.shares_memory(array, tensor.numpy())
