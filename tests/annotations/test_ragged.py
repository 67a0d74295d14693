"""Ragged: rows by sample, padding, and what it refuses."""

import pickle

import pytest
import torch

import gpupipe


def ragged(*counts: int) -> gpupipe.Ragged:
    """Boxes 0, 1, 2, ...: `counts` of them for each sample."""
    total = sum(counts)
    values = torch.arange(total, dtype=torch.float32)[:, None].expand(total, 4).contiguous()
    return gpupipe.Ragged(values, torch.tensor([0, *counts]).cumsum(0))


def test_each_sample_has_its_rows() -> None:
    boxes = ragged(2, 0, 3)
    assert len(boxes) == 3
    assert boxes.counts.tolist() == [2, 0, 3]
    assert [rows[:, 0].tolist() for rows in boxes.unbind()] == [[0, 1], [], [2, 3, 4]]
    assert [rows.shape for rows in boxes] == [(2, 4), (0, 4), (3, 4)]
    assert boxes[-1].tolist() == boxes[2].tolist()
    assert boxes[1].shape == (0, 4)


@pytest.mark.parametrize("number", [3, -4])
def test_there_is_no_such_sample(number: int) -> None:
    with pytest.raises(IndexError, match=f"sample {number} of 3"):
        ragged(2, 0, 3)[number]


def test_padding_fills_up_and_says_which_rows_are_real() -> None:
    padded, is_row = ragged(2, 0, 3).pad(-1.0)
    assert padded.shape == (3, 3, 4)
    assert is_row.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert padded[..., 0].tolist() == [[0, 1, -1], [-1, -1, -1], [2, 3, 4]]
    padded, is_row = ragged(2, 1).pad(0.0, length=5)
    assert padded.shape == (2, 5, 4)
    assert is_row.sum(1).tolist() == [2, 1]
    with pytest.raises(ValueError, match="3 rows, which do not fit into 2"):
        ragged(3).pad(0.0, length=2)


@pytest.mark.parametrize("counts", [(), (0,), (0, 0)])
def test_no_rows_at_all(counts: tuple[int, ...]) -> None:
    boxes = ragged(*counts)
    padded, is_row = boxes.pad(0.0)
    assert padded.shape == (len(counts), 0, 4)
    assert is_row.shape == (len(counts), 0)
    assert len(boxes.unbind()) == len(counts)
    assert boxes.to("cpu", non_blocking=True).values.shape == (0, 4)


def test_from_list_joins_samples_and_equals_its_parts() -> None:
    parts = [torch.ones(2, 3), torch.zeros(0, 3), torch.ones(1, 3)]
    joined = gpupipe.Ragged.from_list(parts)
    assert joined.offsets.tolist() == [0, 2, 2, 3]
    assert all(torch.equal(a, b) for a, b in zip(joined, parts, strict=True))
    with pytest.raises(ValueError, match="no sample"):
        gpupipe.Ragged.from_list([])


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ([0, 2, 1, 4], "ascend"),
        ([1, 4], "ascend"),
        ([0, 3], "the number of rows"),
        ([], r"int64 \(B \+ 1,\)"),
    ],
)
def test_wrong_offsets_are_refused(offsets: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        gpupipe.Ragged(torch.zeros(4, 2), torch.tensor(offsets, dtype=torch.int64))
    with pytest.raises(ValueError, match="int32"):
        gpupipe.Ragged(torch.zeros(4, 2), torch.tensor([0, 4], dtype=torch.int32))


def test_it_is_pickled_and_shown() -> None:
    boxes = ragged(2, 0, 3)
    copy = pickle.loads(pickle.dumps(boxes))
    assert torch.equal(copy.values, boxes.values)
    assert torch.equal(copy.offsets, boxes.offsets)
    assert repr(boxes) == "<Ragged: 5 rows of 3 samples, each (4,) torch.float32 on cpu>"
