"""Soft labels: the share of each class in each sample of a batch, float32 (B, classes)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

MixLabels = Callable[["Tensor"], "Tensor"]
"""Mixes soft labels. It computes each class in the same way, from the shares of this class alone:
those of a sample, and of the sample `shift` before it."""


def to_soft_labels(labels: Tensor, num_classes: int) -> Tensor:
    """Convert class numbers (B,) to one-hot labels, float32 (B, num_classes), on their device.

    Raises:
        IndexError: A label is not below `num_classes`, or is negative. Its text is the label.
            Labels on a GPU are not checked: the check would wait for the GPU.
    """
    import torch

    if labels.is_cpu:  # NumPy has less overhead than torch
        numbers = labels.numpy().astype(np.int64, copy=False)
        _check(numbers, num_classes)
        array = np.zeros((len(numbers), num_classes), np.float32)
        array.put(numbers + np.arange(0, array.size, num_classes), 1.0)
        return torch.from_numpy(array)
    rows = torch.zeros(len(labels), num_classes, device=labels.device)
    return rows.scatter_(1, labels.long().unsqueeze(1), 1.0)


def mix_one_hot(
    numbers: NDArray[np.int64], num_classes: int, shift: int, steps: Sequence[MixLabels]
) -> Tensor:
    """Return the soft labels that several steps make of one-hot labels.

    The result equals `step(labels)` of one step after the other, to the bit. But only four shares
    are computed, since a row has no others: those of the sample's own class, of the class of the
    sample `shift` before it, of all other classes, and of the class of both if they have the same.

    Args:
        numbers: The class numbers of the samples, int64 (B,).
        num_classes: The number of classes.
        shift: As the steps mix: 0 to B - 1.
        steps: The steps. None after the first may mix samples.

    Raises:
        IndexError: A label is no class. Its text is the label.
    """
    import torch

    _check(numbers, num_classes)
    shares = _make_two_samples(shift)
    for step in steps:
        shares = step(shares)
    own, earlier, others, of_both = shares[0].tolist()
    labels = np.full((len(numbers), num_classes), others, np.float32)
    rows, before = np.arange(0, labels.size, num_classes), np.roll(numbers, shift)
    labels.put(rows + before, earlier)
    labels.put(rows + numbers, np.where(numbers == before, of_both, own))
    return torch.from_numpy(labels)


@lru_cache(maxsize=16)
def _make_two_samples(shift: int) -> Tensor:
    """Return one-hot labels of which row 0 is mixed with row `shift`, (2 * shift, 4).

    The columns are the class of row 0, that of row `shift`, one of neither, and one of both.
    """
    import torch

    pair = np.array([[1, 0, 0, 1], [0, 1, 0, 1]], np.float32)
    return torch.from_numpy(pair.repeat(max(shift, 1), 0))


def _check(numbers: NDArray[np.int64], num_classes: int) -> None:
    """Raise IndexError if a label is no class."""
    # As unsigned numbers, those below 0 are the largest.
    largest = numbers.item(numbers.view(np.uint64).argmax()) if len(numbers) else 0
    if not 0 <= largest < num_classes:
        raise IndexError(str(largest))
