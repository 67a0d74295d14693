"""Converts batches of uint8 in the CPU's memory, as the last steps of a pipeline do.

The memory of the result is used again, since new memory of that size takes longer than the work.
The extension `gpupipe._kernels` converts in one pass. Without it, torch converts a few images at a
time, so that what the steps make in between stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpupipe.engines.batch_memory import BatchMemory
from gpupipe.engines.value_tables import Numbers, make_numbers, make_table
from gpupipe.pipeline.step import Step
from gpupipe.runtime.compiled_extension import find_extension
from gpupipe.steps.normalize import Normalize
from gpupipe.steps.to_dtype import ToDtype

_PART_BYTES = 1 << 20
_BITS = {torch.bfloat16: torch.int16}
"""NumPy has no such dtype, and the extension copies bits."""
_CONVERTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_RGB = 3
_extension = find_extension()

Convert = Callable[[torch.Tensor], torch.Tensor]


def find_numbers(steps: Sequence[Step]) -> Numbers | None:
    """Return what steps compute of levels; None if one is neither to_dtype nor normalize."""
    numbers: list[tuple[str, Any]] = []
    for step in steps:
        if type(step) is ToDtype:
            numbers.append(("to_dtype", (step.dtype, step.scale)))
        elif type(step) is Normalize:
            numbers.append(("normalize", (step.mean, step.std)))
        else:
            return None
    return tuple(numbers)


def can_convert_levels(images: torch.Tensor, numbers: Numbers, dtype: str | None) -> bool:
    """Whether `convert_levels` takes these images."""
    return (
        _extension is not None
        and images.dtype == torch.uint8
        and images.dim() == 4
        and images.shape[1] == _RGB
        and images.numel() > 0
        and images.shape[2] * images.shape[3] <= _extension.MAX_SIDE
        and (images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last))
        and make_table(numbers, dtype, _RGB).dtype in _CONVERTED
    )


def convert_levels(
    images: torch.Tensor, numbers: Numbers, dtype: str | None, memory: BatchMemory
) -> torch.Tensor:
    """Return what to_dtype and normalize make of images, in their memory format.

    Args:
        images: A batch (B, 3, H, W) that `can_convert_levels`.
        numbers: What is computed.
        dtype: The dtype of the result; None keeps that of the last call.
        memory: Where the result's memory comes from.
    """
    table = make_table(numbers, dtype, _RGB)
    factors = make_numbers(numbers, dtype, _RGB)
    count, _, height, width = images.shape
    if images.is_contiguous():
        batch = memory.allocate((count, _RGB, height, width), table.dtype)
        prepare = _extension.prepare_convert_planes
        sources, places = (t.view(count, _RGB, 1, height * width) for t in (images, batch))
    else:
        block = memory.allocate((count, height, width, _RGB), table.dtype)
        batch = block.permute(0, 3, 1, 2)
        prepare = _prepare_convert_pixels
        sources = images.permute(0, 2, 3, 1).view(count, 1, height * width, _RGB)
        places = block.view(count, 1, height * width, _RGB).permute(0, 3, 1, 2)
    looked_up = _as_numpy(table[:, 0])
    pairs = zip(sources.numpy(), _as_numpy(places), strict=True)
    _extension.run([prepare(source, (place, looked_up, factors)) for source, place in pairs])
    return batch


def _prepare_convert_pixels(source: Any, output: tuple[Any, Any, Any]) -> Any:
    return _extension.prepare_convert(source, (False, False), output)


def _as_numpy(tensor: torch.Tensor) -> Any:
    return tensor.view(_BITS.get(tensor.dtype, tensor.dtype)).numpy()


def convert_in_parts(images: torch.Tensor, convert: Convert, memory: BatchMemory) -> torch.Tensor:
    """Return `convert(images)`, made a few images at a time.

    Args:
        images: A batch (B, ...).
        convert: A function of images (n, ...) that treats each alone. Its result is dense.
        memory: Where the result's memory comes from.
    """
    count = len(images)
    if count < 2:
        return convert(images)
    first = convert(images[:1])
    shape, strides = first.shape[1:], first.stride()[1:]
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    block = memory.allocate((count, *(shape[axis] for axis in order)), first.dtype)
    batch = block.permute(0, *(order.index(axis) + 1 for axis in range(len(shape))))
    batch[:1] = first
    part = max(1, _PART_BYTES // max(1, first.nbytes))
    for start in range(1, count, part):
        batch[start : start + part] = convert(images[start : start + part])
    return batch
