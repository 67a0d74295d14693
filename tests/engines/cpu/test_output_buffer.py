"""The memory of a batch: the first sample decides its shape, and each sample has a slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpupipe.engines.batch import BatchMemory
from gpupipe.engines.cpu.output_buffer import DeliveryFormat, OutputBuffer

SHAPE = (3, 4, 5)


def create(memory: BatchMemory | None, channels_last: bool = False) -> OutputBuffer:
    return OutputBuffer(3, DeliveryFormat(None, None, channels_last), memory)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_first_sample_decides_the_shape(channels_last: bool) -> None:
    output = create(BatchMemory(1), channels_last)
    assert not output.is_allocated
    assert output.begin(1, SHAPE, torch.float32)
    assert output.is_allocated
    assert not output.begin(0, (3, 5, 4), torch.float32), "it has another shape"
    assert output.begin(2, SHAPE, torch.float32)
    assert [output.has_slot(row) for row in range(3)] == [False, True, True]
    assert output.shapes == {0: (3, 5, 4), 1: SHAPE, 2: SHAPE}
    output.slot(1).fill_(7)
    output.slot_array(2)[...] = 8
    batch = output.take([1, 2])
    assert batch.shape == (2, *SHAPE)
    assert batch.flatten(1).unique(dim=1).tolist() == [[7.0], [8.0]]
    is_last = batch[:1].is_contiguous(memory_format=torch.channels_last)
    assert is_last == channels_last


def test_all_rows_are_the_batch_itself() -> None:
    output = create(BatchMemory(1))
    assert all(output.begin(row, SHAPE, torch.uint8) for row in range(3))
    batch = output.take([0, 1, 2])
    assert batch.data_ptr() == output.slot(0).data_ptr()


def test_nothing_is_delivered_without_memory() -> None:
    output = create(None)
    assert not output.begin(0, SHAPE, torch.uint8)
    assert not output.has_slot(0)
    assert not output.is_allocated
    assert output.shapes == {0: SHAPE}, "samples of unequal shapes are still found"


def test_bfloat16_is_written_as_bits() -> None:
    output = create(BatchMemory(1))
    output.begin(0, SHAPE, torch.bfloat16)
    assert output.slot_array(0).dtype == np.int16
    output.slot_array(0)[...] = np.array(1.0, np.float32).view(np.int32) >> 16
    assert (output.slot(0) == 1.0).all()
