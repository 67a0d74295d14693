"""to_original() maps a detector's boxes back onto the images as they are stored."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from gpupipe.annotations.batch_annotations import TO_ORIGINAL
from gpupipe.annotations.ragged import Ragged
from gpupipe.errors import UsageError

Boxes = TypeVar("Boxes", Tensor, list[Tensor], Ragged)


def to_original(boxes: Boxes, batch: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Boxes:
    """Map boxes from the images of a batch onto the stored images, before resize, crop and so on.

    Args:
        boxes: [left, top, right, bottom] in pixels of the delivered images: a tensor (B, N, 4), a
            list of B tensors (N, 4), or a Ragged, on any device.
        batch: The batch, with "to_original"; or its list of targets, if `loader.format` makes one.

    Returns:
        The boxes in the same form, dtype and order, in pixels of the stored images. A box that a
        step rotated becomes the hull of its corners.

    Raises:
        UsageError: The batch has no "to_original": a step such as random_perspective moves pixels
            in a way that no matrix describes. Or the batch has another number of samples.

    Examples:
        >>> predictions = model(batch["image"])
        >>> boxes = gpupipe.detection.to_original([p["boxes"] for p in predictions], batch)
    """
    matrices = _find_matrices(batch)
    if isinstance(boxes, Ragged):
        rows = torch.arange(len(boxes)).repeat_interleave(boxes.counts)
        _check_count(len(boxes), len(matrices))
        moved = _move(boxes.values[:, None], matrices.to(boxes.values.device)[rows])
        return Ragged(moved[:, 0], boxes.offsets)
    _check_count(len(boxes), len(matrices))
    if isinstance(boxes, Tensor):
        return _move(boxes, matrices.to(boxes.device))
    pairs = zip(boxes, matrices, strict=True)
    return [_move(b[None], matrix[None].to(b.device))[0] for b, matrix in pairs]


def _find_matrices(batch: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Tensor:
    """Return the matrices of a batch or of its targets, float64 (B, 3, 3)."""
    try:
        if isinstance(batch, Mapping):
            found: Tensor = batch[TO_ORIGINAL]
            return found
        return torch.stack([target[TO_ORIGINAL] for target in batch])
    except KeyError:
        raise UsageError(
            f"the batch has no '{TO_ORIGINAL}': the data has no annotations, or a step of the "
            "pipeline moves pixels in a way that no matrix describes, such as random_perspective: "
            "evaluate with a pipeline of resize, crops and flips"
        ) from None


def _check_count(boxes: int, samples: int) -> None:
    if boxes != samples:
        raise UsageError(f"there are boxes of {boxes} images, but the batch has {samples}")


def _move(boxes: Tensor, matrices: Tensor) -> Tensor:
    """Map boxes (B, N, 4) by matrices (B, 3, 3)."""
    left, top, right, bottom = boxes.double().unbind(-1)
    x = torch.stack([left, right, right, left], -1)
    y = torch.stack([top, top, bottom, bottom], -1)
    m = matrices[:, :2, :, None, None]
    new_x, new_y = (m[:, n, 0] * x + m[:, n, 1] * y + m[:, n, 2] for n in range(2))
    ends = [new_x.amin(-1), new_y.amin(-1), new_x.amax(-1), new_y.amax(-1)]
    return torch.stack(ends, -1).to(boxes.dtype)
