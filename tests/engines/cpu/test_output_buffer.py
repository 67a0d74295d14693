"""Slots of a batch, and samples that are written to several of them at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu.output_buffer import MAX_JOINED, OutputBuffer
from gpupipe.runtime.batch_memory import BatchMemory

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
    assert output.list_shapes(range(3)) == [(3, 5, 4), SHAPE, SHAPE]
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
    assert output.list_shapes(range(3)) == [SHAPE], "samples of unequal shapes are still found"


def test_bfloat16_is_written_as_bits() -> None:
    output = create(BatchMemory(1))
    output.begin(0, SHAPE, torch.bfloat16)
    assert output.slot_array(0).dtype == np.int16
    output.slot_array(0)[...] = np.array(1.0, np.float32).view(np.int32) >> 16
    assert (output.slot(0) == 1.0).all()


def test_small_samples_of_one_shape_are_written_at_once() -> None:
    output = OutputBuffer(4, DeliveryFormat("float16", None, False), BatchMemory(1))
    assert output.put(range(1, 3), [torch.tensor([1, 2]), torch.tensor([3, 4])])
    assert output.list_shapes(range(4)) == [(2,), (2,)]
    assert output.put(range(3, 4), [torch.tensor([5, 6])])
    assert output.begin(0, (2,), torch.float16)
    output.slot(0).fill_(0)
    batch = output.take([0, 1, 2, 3])
    assert (batch.dtype, batch.tolist()) == (torch.float16, [[0, 0], [1, 2], [3, 4], [5, 6]])


@pytest.mark.parametrize(
    "samples",
    [
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
        [torch.zeros(MAX_JOINED // 4 + 1)] * 2,
    ],
    ids=["shapes", "dtypes", "large"],
)
def test_other_samples_are_left_to_the_caller(samples: list[torch.Tensor]) -> None:
    output = create(BatchMemory(1))
    assert not output.put(range(2), samples)
    assert not output.is_allocated
    assert not output.list_shapes(range(4))


def test_samples_of_another_shape_than_the_batch_are_left_to_the_caller() -> None:
    output = create(BatchMemory(1))
    assert output.begin(0, (3,), torch.float32)
    assert not output.put(range(1, 3), [torch.zeros(2)] * 2)
    assert output.list_shapes(range(4)) == [(3,)]


class Numbered:
    """Images of one file, each with its number, and an array that begins with it."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        data = self.data[:100] if index == 7 else self.data
        row = np.arange(index, index + 3, dtype=np.float32)
        return {"image": data, "label": index, "weight": index / 4, "row": row}


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_labels_and_small_arrays_are_those_of_their_samples(faces: Path, dtype: str | None) -> None:
    """One image is cut off, so that the samples after it move up by one slot."""
    dataset = Numbered(next(faces.rglob("*.jpg")).read_bytes())
    options: dict[str, Any] = {"dtype": dtype, "on_error": "skip", "max_bad": 0.5, "ids": True}
    steps = ["decode", {"resize": {"size": [20, 20]}}]
    with gpupipe.load(
        dataset, pipeline=steps, engine="cpu", device="cpu", batch_size=20, **options
    ) as loader:
        batches = list(loader)
    assert sorted(n for b in batches for n in b["id"].tolist()) == [*range(7), *range(8, 40)]
    for batch in batches:
        assert batch["label"].tolist() == batch["id"].tolist()
        assert batch["weight"].tolist() == [n / 4 for n in batch["id"].tolist()]
        assert batch["row"].tolist() == [[n, n + 1, n + 2] for n in batch["id"].tolist()]
