"""BatchMixer: runs the batch stage on the batches of a loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch_stage.stage import BatchEntry, BatchStage
from gpupipe.errors import ConfigError, ShapeError, counted
from gpupipe.pipeline.step import Params, StepIncompatibleError
from gpupipe.pipeline.tensors import from_steps, to_steps
from gpupipe.runtime.batch_memory import BatchMemory

if TYPE_CHECKING:
    from torch import Tensor


_SPARE = 2
"""How many unused results of each field are kept for later batches: one may be in use."""
_BATCH = "*"
"""The letter of the batch axis in a layout; no other axis has it."""


class BatchMixer:
    """Runs a batch stage on batches, on their device.

    The draws are hashes of (seed, epoch, ids of the batch, step). So they depend on all samples of
    the batch, and a resumed run has the same draws.

    Args:
        stage: The steps.
        seed: The loader's seed.
        classes: The names of the classes.

    Attributes:
        stage: The steps.
        num_classes: The width of the soft labels.
    """

    def __init__(self, stage: BatchStage, seed: int, classes: Sequence[str]) -> None:
        self.stage, self._seed = stage, seed
        self.num_classes = stage.num_classes or len(classes)
        self._memory = BatchMemory(_SPARE * len(stage.main))

    def release(self) -> None:
        """Free the memory that is kept for the results of later batches."""
        self._memory.release()

    def mix(
        self, epoch: int, ids: NDArray[np.int64], batch: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the mixed batch; the batch itself if the stage has no steps.

        Args:
            epoch: The epoch, from 0.
            ids: The rows of the batch's samples in the index, int64 (B,).
            batch: Fields (B, ...), and "label", int64 (B,), if the data has labels. It is not
                changed in place.

        Returns:
            The mixed fields, and the soft "label", float32 (B, num_classes), if a step takes it.

        Raises:
            ShapeError: If a step cannot process the sizes of this batch, or a label is no class.
            StepError: If a step's code fails.
        """
        if not self.stage.entries:
            return batch
        mixed = dict(batch)
        if self.stage.uses_labels:
            self._check_labels(batch["label"])
            mixed["label"] = to_soft_labels(batch["label"], self.num_classes)
        for entry in self.stage.at_epoch(epoch).entries:
            parameters = {"memory": self._memory} | entry.parameters(self._seed, epoch, ids)
            mixed |= _run(entry, parameters, mixed)
        return mixed

    def _check_labels(self, labels: Tensor) -> None:
        """Raise ShapeError if a label is no class: those read with their samples may be any."""
        if labels.is_cpu and len(labels):  # elsewhere the check would wait for the device
            numbers = labels.numpy()  # less overhead than torch's
            low, high = int(numbers.min()), int(numbers.max())
            if not 0 <= low <= high < self.num_classes:
                wrong = low if low < 0 else high
                raise ShapeError(
                    f"{self.stage.entries[0].where}: a sample has the label {wrong}, but labels "
                    f"are 0 to {self.num_classes - 1}: see num_classes"
                )


def to_soft_labels(labels: Tensor, num_classes: int) -> Tensor:
    """Convert class numbers (B,) to one-hot labels, float32 (B, num_classes), on their device."""
    import torch

    if labels.is_cpu:  # less overhead than torch's
        array = np.zeros((len(labels), num_classes), np.float32)
        array[np.arange(len(labels)), labels.numpy().astype(np.int64)] = 1.0
        return torch.from_numpy(array)
    rows = torch.zeros(len(labels), num_classes, device=labels.device)
    return rows.scatter_(1, labels.long().unsqueeze(1), 1.0)


def _run(entry: BatchEntry, parameters: Params, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run one step, and return its output: the fields that it works on, and "label", if any."""
    layouts = {name: f"{_BATCH}{layout}" for name, layout in entry.layouts.items()}
    images = {name: to_steps(batch[name], layout) for name, layout in layouts.items()}
    first = next(iter(images.values()))
    labels = batch["label"] if "label" in batch else first.new_zeros(len(first), 0)  # of no class
    try:
        with entry.blame("torch()", StepIncompatibleError):
            mixed, soft = entry.step.torch(images, labels, parameters)
    except StepIncompatibleError as e:
        raise ShapeError(f"{entry.where}: {entry.key}: {e}") from None
    _check_result(entry, images | {"label": labels}, mixed | {"label": soft})
    back = {name: from_steps(mixed[name], layout) for name, layout in layouts.items()}
    return back | ({"label": soft} if "label" in batch else {})


def _check_result(entry: BatchEntry, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Raise StepError if a step changed the shape or dtype of a field."""
    for name, tensor in before.items():
        result = after.get(name)
        if result is None or (result.shape, result.dtype) != (tensor.shape, tensor.dtype):
            output = "nothing" if result is None else f"{tuple(result.shape)} {result.dtype}"
            field = f"'{name}', {tuple(tensor.shape)} {tensor.dtype}"
            raise entry.wrong(f"its torch() made {output} of {field}")


def check_labels(
    stage: BatchStage, classes: Sequence[str], labels: NDArray[np.int64] | None
) -> None:
    """Raise ConfigError if the labels of the data cannot become soft labels.

    The error points at the first step of the stage.

    Args:
        stage: The steps. A stage whose steps take no labels accepts all.
        classes: The names of the classes.
        labels: The label of each sample of the data, (N,), or (0,) if they are read with their
            samples; None if only a server knows them.
    """
    if not stage.uses_labels:
        return
    first, num_classes = stage.entries[0], stage.num_classes or len(classes)
    if wrong := _explain_wrong_labels(num_classes, classes, labels):
        raise ConfigError.at(first.where, f"{first.name} cannot stand here: {wrong}")


def _explain_wrong_labels(
    num_classes: int, classes: Sequence[str], labels: NDArray[np.int64] | None
) -> str:
    """Return why the labels cannot become soft labels of `num_classes` classes; "" if they can."""
    if not classes if labels is None else len(labels) and bool((labels == -1).all()):
        return (
            "it mixes labels, and the data has none: name the labels in 'data:', or leave out "
            "'batch:'"
        )
    if not num_classes:
        return (
            "it mixes labels, which are read with their samples here, so that the number of "
            "classes is not known: write num_classes"
        )
    if labels is not None and (labels.dtype.kind not in "iu" or labels.ndim != 1):
        return (
            f"it needs labels that are class numbers, int64 (N,), but those of the data are "
            f"{labels.dtype} {labels.shape}: give classes as labels, and other numbers as values"
        )
    if num_classes < len(classes):
        return (
            f"num_classes is {num_classes}, but the data has "
            f"{counted(len(classes), 'class', 'classes')}: write num_classes: {len(classes)}, or "
            "leave it out"
        )
    if labels is not None and len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        return f"the data has the label {wrong}, but labels are 0 to {num_classes - 1}"
    return ""
