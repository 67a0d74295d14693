"""Tensors as arrays and back, the size of an answer, and how many of them may wait."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
import torch

from gpupipe.engines.ray.messages import BatchAnswer, choose_window, pack, unpack
from gpupipe.errors import EngineError

SMALL = {
    "batch_bytes": 10_000_000,
    "finished": 2,
    "trainers": 1,
    "store_bytes": 200_000_000,
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_values_and_strides_survive(dtype: torch.dtype, axes: tuple[int, ...]) -> None:
    tensor = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(dtype).permute(axes)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(pack(tensor), protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1, "the pixels are out of band"
    again = unpack(pickle.loads(data, buffers=buffers))
    assert again.dtype == tensor.dtype and again.stride() == tensor.stride()
    assert torch.equal(again, tensor)


def test_a_read_only_array_is_wrapped_without_a_copy_and_can_be_written() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    packed = pack(torch.from_numpy(array))
    packed.array.flags.writeable = False
    tensor = unpack(packed)
    tensor[0, 0] = 7
    assert array[0, 0] == 7


def test_empty_tensors() -> None:
    empty = pack(torch.zeros(0, 3))
    empty.array.flags.writeable = False
    assert unpack(empty).shape == (0, 3)


def test_the_size_of_an_answer_is_that_of_all_its_fields() -> None:
    image, mask = torch.zeros(2, 3, 4, 5, dtype=torch.uint8), torch.zeros(2, 4, 5)
    answer = BatchAnswer({"image": pack(image), "mask": pack(mask)})
    assert answer.nbytes == 2 * 3 * 4 * 5 + 4 * 2 * 4 * 5
    assert BatchAnswer().nbytes == 0


def test_a_window_that_fits_is_taken() -> None:
    assert choose_window(12, True, **SMALL) == 12


def test_a_default_window_shrinks_to_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert choose_window(13, False, **SMALL) == 12
    assert "200 MB" in caplog.text and "10.0 MB" in caplog.text


def test_an_explicit_window_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(EngineError, match=r"17 batches of 10\.0 MB need 170 MB, and 80% of 200 MB"):
        choose_window(13, True, **SMALL)


def test_trainers_of_a_node_share_its_store() -> None:
    assert choose_window(4, True, **{**SMALL, "trainers": 2}) == 4
    with pytest.raises(EngineError):
        choose_window(5, True, **{**SMALL, "trainers": 2})
    with pytest.raises(EngineError, match="--object-store-memory"):
        choose_window(10, False, **{**SMALL, "batch_bytes": 40_000_000})
