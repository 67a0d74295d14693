"""The joined buffers of several views: which row is where."""

import torch

from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu.joined_buffers import JoinedBuffers
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.runtime.batch_memory import BatchMemory

FORMAT = DeliveryFormat(None, None, False)
SHAPE = 3, 4, 5


def test_a_row_of_joined_buffers_is_a_row_of_one_of_them() -> None:
    buffers = [OutputBuffer(2, FORMAT, BatchMemory(2)) for _ in range(3)]
    joined = JoinedBuffers(buffers, 2)
    assert joined.format is FORMAT
    assert not joined.has_slot(5)
    for row in range(6):
        assert joined.begin(row, SHAPE, torch.uint8)
        joined.slot(row).fill_(row)
    assert joined.has_slot(5)
    assert joined.slot_array(5).max() == 5
    values = [buffer.take([0, 1])[:, 0, 0, 0].tolist() for buffer in buffers]
    assert values == [[0, 1], [2, 3], [4, 5]]


def test_all_rows_begin_at_once_if_each_buffer_has_memory_for_the_shape() -> None:
    buffers = [OutputBuffer(2, FORMAT, BatchMemory(2)) for _ in range(2)]
    arrays = JoinedBuffers(buffers, 2).begin_all(SHAPE, torch.float32)
    assert arrays is not None
    assert [array.shape for array in arrays] == [(2, *SHAPE)] * 2
    assert buffers[1].list_shapes(range(2)) == [SHAPE, SHAPE]
    assert JoinedBuffers(buffers, 2).begin_all((3, 9, 9), torch.float32) is None
