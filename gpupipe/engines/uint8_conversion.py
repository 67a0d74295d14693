"""Runs the last steps of a pipeline on uint8 batches: to_dtype, normalize, and a change of dtype.

A table holds the result for each of the 256 values, in each channel. It is computed once, with
torchvision's arithmetic. With the table, the extension `gpupipe._kernels` converts batches in the
CPU's memory, in one pass. Without the extension, torch converts a few images at a time, so that
intermediate results stay in the processor's cache. The memory of the result is reused, because
allocating it takes longer than the conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.batch import BatchMemory
from gpupipe.pipeline.step import Step
from gpupipe.runtime.compiled_extension import find_extension
from gpupipe.steps.normalize import Normalize
from gpupipe.steps.to_dtype import ToDtype

_PART_BYTES = 1 << 20
_BITS = {torch.bfloat16: torch.int16}
"""NumPy lacks these dtypes, so it gets a tensor as integers with the same bits."""
_CONVERTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_RGB = 3
_extension = find_extension()

VALUES = torch.arange(256, dtype=torch.uint8)[None, None]
Conversions = tuple[tuple[str, Any], ...]
"""Each step in order: ("to_dtype", (dtype, scale)) or ("normalize", (mean, std))."""
_MAX_VALUE = 255
Convert = Callable[[torch.Tensor], torch.Tensor]


def find_conversions(steps: Sequence[Step]) -> Conversions | None:
    """Return the steps as Conversions; None if a step is neither to_dtype nor normalize."""
    conversions: list[tuple[str, Any]] = []
    for step in steps:
        if type(step) is ToDtype:
            conversions.append(("to_dtype", (step.dtype, step.scale)))
        elif type(step) is Normalize:
            conversions.append(("normalize", (step.mean, step.std)))
        else:
            return None
    return tuple(conversions)


@lru_cache(maxsize=64)
def make_table(conversions: Conversions, dtype: str | None, channels: int) -> torch.Tensor:
    """Convert each of the 256 values of uint8; return a tensor (channels, 1, 256).

    Args:
        conversions: The steps that are applied.
        dtype: The dtype of the result; None keeps the dtype of the last step.
        channels: The number of channels.
    """
    values = VALUES.expand(channels, 1, 256).contiguous()
    for primitive, options in conversions:
        if primitive == "to_dtype":
            values = _convert(values, *options)
        else:
            values = Normalize(mean=options[0], std=options[1]).torch(values, {})
    return values if dtype is None else values.to(getattr(torch, dtype))


def _convert(values: torch.Tensor, dtype: str, scale: bool) -> torch.Tensor:
    """Apply to_dtype to a tensor.

    The conversion of uint8 to floats is written here, with torchvision's arithmetic: importing
    torchvision takes a second and 110 MiB, and most pipelines use it for nothing else.
    """
    new_dtype: torch.dtype = getattr(torch, dtype)
    if values.dtype == torch.uint8 and new_dtype.is_floating_point:
        floats = values.to(new_dtype)
        return floats.mul_(1 / _MAX_VALUE) if scale else floats
    converted: torch.Tensor = ToDtype(dtype=dtype, scale=scale).torch(values, {})
    return converted


@lru_cache(maxsize=64)
def make_coefficients(
    conversions: Conversions, dtype: str | None, channels: int
) -> NDArray[np.float32] | None:
    """Return [scale, mean, std] of each channel, (3, channels), in float32.

    With them, table[c][v] == (v * scale[c] - mean[c]) / std[c] for each value v, computed in
    float32 and then converted to the table's dtype. Returns None if a value would differ.

    Args:
        conversions: The steps that are applied.
        dtype: The dtype of the table; None: the dtype of the last step.
        channels: The number of channels.
    """
    table = make_table(conversions, dtype, channels)
    if table.dtype not in (torch.float32, torch.float16):
        return None
    scale, mean, std = np.ones(channels), np.zeros(channels), np.ones(channels)
    for primitive, options in conversions:
        if primitive == "normalize":
            mean[:], std[:] = options
        elif options[1]:
            scale[:] = 1 / _MAX_VALUE
    rows = np.stack([scale, mean, std]).astype(np.float32)
    column = rows[:, :, None]
    computed = (np.arange(256, dtype=np.float32) * column[0] - column[1]) / column[2]
    is_exact = torch.equal(torch.from_numpy(computed).to(table.dtype), table[:, 0])
    return rows if is_exact else None


def can_convert_values(images: torch.Tensor, conversions: Conversions, dtype: str | None) -> bool:
    """Whether `convert_values` supports these images, steps and dtype."""
    return (
        _extension is not None
        and images.dtype == torch.uint8
        and images.dim() == 4
        and images.shape[1] == _RGB
        and images.numel() > 0
        and images.shape[2] * images.shape[3] <= _extension.MAX_SIDE
        and (images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last))
        and make_table(conversions, dtype, _RGB).dtype in _CONVERTED
    )


def convert_values(
    images: torch.Tensor, conversions: Conversions, dtype: str | None, memory: BatchMemory
) -> torch.Tensor:
    """Apply to_dtype and normalize to images; the result has the memory format of the images.

    Args:
        images: A uint8 batch (B, 3, H, W) for which `can_convert_values` is true.
        conversions: The steps that are applied.
        dtype: The dtype of the result; None keeps the dtype of the last step.
        memory: Provides the memory of the result.
    """
    table = make_table(conversions, dtype, _RGB)
    coefficients = make_coefficients(conversions, dtype, _RGB)
    count, _, height, width = images.shape
    if images.is_contiguous():
        batch = memory.allocate((count, _RGB, height, width), table.dtype)
        prepare = _extension.prepare_convert_planes
        sources, outputs = (t.view(count, _RGB, 1, height * width) for t in (images, batch))
    else:
        block = memory.allocate((count, height, width, _RGB), table.dtype)
        batch = block.permute(0, 3, 1, 2)
        prepare = _prepare_convert_pixels
        sources = images.permute(0, 2, 3, 1).view(count, 1, height * width, _RGB)
        outputs = block.view(count, 1, height * width, _RGB).permute(0, 3, 1, 2)
    values = _as_numpy(table[:, 0])
    pairs = zip(sources.numpy(), _as_numpy(outputs), strict=True)
    _extension.run([prepare(source, (output, values, coefficients)) for source, output in pairs])
    return batch


def _prepare_convert_pixels(source: Any, output: tuple[Any, Any, Any]) -> Any:
    return _extension.prepare_convert(source, (False, False), output)


def _as_numpy(tensor: torch.Tensor) -> Any:
    return tensor.view(_BITS.get(tensor.dtype, tensor.dtype)).numpy()


def convert_in_parts(images: torch.Tensor, convert: Convert, memory: BatchMemory) -> torch.Tensor:
    """Return `convert(images)`, computed for a few images at a time.

    Args:
        images: A batch (B, ...).
        convert: Converts images (n, ...), each independently of all others, to a dense tensor.
        memory: Provides the memory of the result.
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
