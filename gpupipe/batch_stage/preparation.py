"""Prepares the batch stage for successive batches at once, before their images are there.

The work on a batch drops the code that mixes from the processor's caches. So what a step does to
one batch, and above all its soft labels, takes several times as long as for many, during which the
interpreter's lock is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch_stage.batch_step import MixFunctions, Sizes
from gpupipe.batch_stage.soft_labels import mix_one_hot, to_soft_labels
from gpupipe.batch_stage.stage import BatchStage

if TYPE_CHECKING:
    from torch import Tensor

_MAX_BYTES = 32 << 20
"""The maximum size of the soft labels that wait for their batches: 4,096 classes of 2,048 rows."""


@dataclass(frozen=True)
class PreparedBatch:
    """What the steps do to the fields of one batch, and the soft labels that they make.

    Attributes:
        sizes: The sizes of the fields for which it is prepared.
        mixings: What each step does.
        labels: The labels after all steps, float32 (B, classes).
    """

    sizes: Sizes
    mixings: Sequence[MixFunctions]
    labels: Tensor


def prepare_batches(
    stage: BatchStage,
    drawn: Sequence[Sequence[Mapping[str, Any]]],
    sizes: Sizes,
    labels: Sequence[NDArray[np.int64]],
    num_classes: int,
) -> list[PreparedBatch | None]:
    """Prepare several batches. Return None for each if a step can only run on the batch itself.

    Args:
        stage: The steps.
        drawn: The parameters of each step, for each batch.
        sizes: [height, width] of each field.
        labels: The class numbers of each batch, int64 (B,).
        num_classes: The number of classes.

    Raises:
        IndexError: A label is no class.
        StepIncompatibleError: A step cannot process these sizes.
    """
    size = 4 * num_classes * sum(map(len, labels))
    if size > _MAX_BYTES or not all(entry.step.can_prepare for entry in stage.entries):
        return [None] * len(labels)
    prepared: list[PreparedBatch | None] = []
    for parameters, numbers in zip(drawn, labels, strict=True):
        mixings = []
        for entry, p in zip(stage.entries, parameters, strict=True):
            of_step = {name: sizes[name] for name in entry.layouts}
            mixings.append(entry.step.prepare(of_step, num_classes, p))
        soft = _mix_labels(stage, mixings, numbers, num_classes, parameters[0]["shift"])
        if (soft.shape, soft.dtype) != ((len(numbers), num_classes), torch.float32):
            return [None] * len(labels)  # a batch alone finds the step at fault
        prepared.append(PreparedBatch(sizes, mixings, soft))
    return prepared


def _mix_labels(
    stage: BatchStage,
    mixings: Sequence[MixFunctions],
    numbers: NDArray[np.int64],
    num_classes: int,
    shift: int,
) -> Tensor:
    steps = [mixing.labels for mixing in mixings if mixing.labels is not None]
    if not any(entry.step.mixes_samples for entry in stage.entries[1:]):
        return mix_one_hot(numbers, num_classes, shift, steps)
    labels = to_soft_labels(torch.from_numpy(numbers), num_classes)
    for step in steps:
        labels = step(labels)
    return labels
