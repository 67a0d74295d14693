"""BatchMixer: runs the batch stage on the batches of a loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch_stage.batch_step import Sizes
from gpupipe.batch_stage.preparation import PreparedBatch, prepare_batches
from gpupipe.batch_stage.soft_labels import to_soft_labels
from gpupipe.batch_stage.stage import BatchEntry, BatchStage
from gpupipe.dataset.index import Index
from gpupipe.errors import ConfigError, ShapeError, counted
from gpupipe.pipeline.step import Params, StepIncompatibleError
from gpupipe.pipeline.tensors import from_steps, to_steps
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.sampling.sampler import Plan
from gpupipe.sampling.siblings import Siblings

if TYPE_CHECKING:
    from torch import Tensor


_SPARE = 2
"""How many unused results of each field are kept for later batches: one may be in use."""


class BatchMixer:
    """Runs a batch stage on batches, on their device.

    The draws are hashes of (seed, epoch, ids of the batch, step). So they depend on all samples of
    the batch, and a resumed run has the same draws.

    Args:
        stage: The steps.
        seed: The loader's seed.
        classes: The names of the classes.
        index: The samples, if each batch is on the CPU and has the index's labels; otherwise None.

    Attributes:
        stage: The steps.
        num_classes: The width of the soft labels.
    """

    def __init__(
        self, stage: BatchStage, seed: int, classes: Sequence[str], index: Index | None = None
    ) -> None:
        self.stage, self._seed, self._index = stage, seed, index
        self.num_classes = stage.num_classes or len(classes)
        self._uses_labels = stage.uses_labels
        self._memory = BatchMemory(_SPARE * len(stage.main))

    def release(self) -> None:
        """Free the memory that is kept for the results of later batches."""
        self._memory.release()

    def mix_planned(
        self, plan: Plan, batch: dict[str, Tensor], memory: BatchMemory | None = None
    ) -> dict[str, Tensor]:
        """Return the mixed batch of a plan; see `mix`."""
        return self.mix(plan.epoch, plan.ids, batch, plan.siblings, plan.number, memory)

    def mix(
        self,
        epoch: int,
        ids: NDArray[np.int64],
        batch: dict[str, Tensor],
        siblings: Siblings | None = None,
        number: int = 0,
        memory: BatchMemory | None = None,
    ) -> dict[str, Tensor]:
        """Return the mixed batch; the batch itself if the stage has no steps.

        Args:
            epoch: The epoch, from 0.
            ids: The rows of the batch's samples in the index, int64 (B,).
            siblings: The plans of this batch and of others, if it has all samples of its plan.
            number: The position of its plan among them.
            batch: Fields (B, ...), and "label", int64 (B,), if the data has labels. It is not
                changed in place.
            memory: Allocates the mixed fields; None for the mixer's own.

        Returns:
            The mixed fields, and the soft "label", float32 (B, num_classes), if a step takes it.

        Raises:
            ShapeError: If a step cannot process the sizes of this batch, or a label is no class.
            StepError: If a step's code fails.
        """
        if not self.stage.entries:
            return batch
        stage = self.stage.at_epoch(epoch)

        def draw(every: Siblings) -> list[list[dict[str, Any]]]:
            return stage.draw(self._seed, epoch, every.batches)

        memory = self._memory if memory is None else memory
        if siblings is not None and self._index is not None and self._uses_labels:
            sizes = _find_sizes(stage, batch)
            prepare = partial(self._prepare, stage, self._index, sizes, draw)
            prepared = siblings.take(number, self, "prepared", prepare)
            if prepared is not None and prepared.sizes == sizes:
                return _mix_prepared(stage, prepared, batch, memory)
        mixed = dict(batch)
        if self._uses_labels:
            mixed["label"] = self._soften(batch["label"])
        drawn = siblings and siblings.take(number, self, "", draw)
        for entry, parameters in zip(stage.entries, drawn or draw(Siblings([ids]))[0], strict=True):
            mixed |= _run(entry, {"memory": memory, **parameters}, mixed)
        return mixed

    def _prepare(
        self,
        stage: BatchStage,
        index: Index,
        sizes: Sizes,
        draw: Callable[[Siblings], Sequence[Sequence[Params]]],
        siblings: Siblings,
    ) -> Sequence[PreparedBatch | None]:
        """Prepare the stage for several plans; see `prepare_batches`."""
        resolved = [index.resolve(ids) for ids in siblings.batches]
        labels = [of_arrays.labels[rows] for of_arrays, rows in resolved]
        return prepare_batches(stage, draw(siblings), sizes, labels, self.num_classes)

    def _soften(self, labels: Tensor) -> Tensor:
        """Return soft labels. Raise ShapeError if a label is no class.

        Labels that are read with their samples may be any.
        """
        try:
            return to_soft_labels(labels, self.num_classes)
        except IndexError as e:
            raise ShapeError(
                f"{self.stage.entries[0].where}: a sample has the label {e}, but labels "
                f"are 0 to {self.num_classes - 1}: see num_classes"
            ) from None


def _find_sizes(stage: BatchStage, batch: dict[str, Tensor]) -> Sizes:
    """Return the last two axes of each field that a step works on, in the order of steps."""
    layouts: dict[str, str] = {}
    for entry in stage.entries:
        layouts |= entry.batch_layouts
    return {name: tuple(to_steps(batch[name], at).shape[-2:]) for name, at in layouts.items()}


def _mix_prepared(
    stage: BatchStage, prepared: PreparedBatch, batch: dict[str, Tensor], memory: BatchMemory
) -> dict[str, Tensor]:
    """Return a mixed batch; see `BatchMixer.mix`."""
    mixed = batch | {"label": prepared.labels}
    for entry, mixing in zip(stage.entries, prepared.mixings, strict=True):
        if mixing.images is None:
            continue
        for name, layout in entry.batch_layouts.items():
            before = to_steps(mixed[name], layout)
            try:
                after = mixing.images(before, memory)
            except StepIncompatibleError as e:
                raise _refuse(entry, e) from None
            except Exception:  # a context manager around each call takes longer than some steps
                with entry.blame("torch()"):
                    raise
            _check_result(entry, name, before, after)
            mixed[name] = from_steps(after, layout)
    return mixed


def _run(entry: BatchEntry, parameters: Params, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run one step, and return its output: the fields that it works on, and "label", if any."""
    layouts = entry.batch_layouts
    images = {name: to_steps(batch[name], layout) for name, layout in layouts.items()}
    labels = batch.get("label")
    if labels is None:
        first = next(iter(images.values()))
        labels = first.new_zeros(len(first), 0)  # of no class
    try:
        mixed, soft = entry.step.torch(images, labels, parameters)
    except StepIncompatibleError as e:
        raise _refuse(entry, e) from None
    except Exception:  # a context manager around each call takes longer than some steps
        with entry.blame("torch()"):
            raise
    for name, image in images.items():
        _check_result(entry, name, image, mixed.get(name))
    _check_result(entry, "label", labels, soft)
    back = {name: from_steps(mixed[name], layout) for name, layout in layouts.items()}
    return back | ({"label": soft} if "label" in batch else {})


def _refuse(entry: BatchEntry, reason: StepIncompatibleError) -> ShapeError:
    return ShapeError(f"{entry.where}: {entry.key}: {reason}")


def _check_result(entry: BatchEntry, name: str, before: Tensor, after: Tensor | None) -> None:
    """Raise StepError if a step changed the shape or dtype of a field."""
    if after is before:
        return
    if after is None or (after.shape, after.dtype) != (before.shape, before.dtype):
        output = "nothing" if after is None else f"{tuple(after.shape)} {after.dtype}"
        field = f"'{name}', {tuple(before.shape)} {before.dtype}"
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
