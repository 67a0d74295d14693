"""Tables of what to_dtype, normalize and a last conversion make of each level of uint8.

A table is computed once, with torchvision's own numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.steps.normalize import Normalize
from gpupipe.steps.to_dtype import ToDtype

LEVELS = torch.arange(256, dtype=torch.uint8)[None, None]
Numbers = tuple[tuple[str, Any], ...]
"""The name and the options of each call of to_dtype and normalize."""
_HIGHEST_LEVEL = 255


@lru_cache(maxsize=64)
def make_table(numbers: Numbers, dtype: str | None, channels: int) -> torch.Tensor:
    """Return what calls make of each value of uint8: a tensor (channels, 1, 256).

    Args:
        numbers: What is computed.
        dtype: The dtype to deliver; None keeps that of the last call.
        channels: The number of channels.
    """
    levels = LEVELS.expand(channels, 1, 256).contiguous()
    for primitive, options in numbers:
        if primitive == "to_dtype":
            levels = _convert(levels, *options)
        else:
            levels = Normalize(mean=options[0], std=options[1]).torch(levels, {})
    return levels if dtype is None else levels.to(getattr(torch, dtype))


def _convert(levels: torch.Tensor, dtype: str, scale: bool) -> torch.Tensor:
    """Return what `to_dtype` makes of levels.

    Most pipelines need nothing else of torchvision, whose import takes a second and 110 MiB. So the
    usual conversion is written here, with torchvision's numbers.
    """
    new_dtype: torch.dtype = getattr(torch, dtype)
    if levels.dtype == torch.uint8 and new_dtype.is_floating_point:
        numbers = levels.to(new_dtype)
        return numbers.mul_(1 / _HIGHEST_LEVEL) if scale else numbers
    converted: torch.Tensor = ToDtype(dtype=dtype, scale=scale).torch(levels, {})
    return converted


@lru_cache(maxsize=64)
def make_numbers(numbers: Numbers, dtype: str | None, channels: int) -> NDArray[np.float32] | None:
    """Return [scale, mean, std] of each channel, (3, channels), in float32.

    With them, table[c][v] == (v * scale[c] - mean[c]) / std[c] for each value v, computed in
    float32 and then converted to the table's dtype. Returns None if a value would differ.

    Args:
        numbers: As `make_table` takes them.
        dtype: As `make_table` takes it.
        channels: The number of channels.
    """
    table = make_table(numbers, dtype, channels)
    if table.dtype not in (torch.float32, torch.float16):
        return None
    scale, mean, std = np.ones(channels), np.zeros(channels), np.ones(channels)
    for primitive, options in numbers:
        if primitive == "normalize":
            mean[:], std[:] = options
        elif options[1]:
            scale[:] = 1 / _HIGHEST_LEVEL
    rows = np.stack([scale, mean, std]).astype(np.float32)
    column = rows[:, :, None]
    computed = (np.arange(256, dtype=np.float32) * column[0] - column[1]) / column[2]
    is_exact = torch.equal(torch.from_numpy(computed).to(table.dtype), table[:, 0])
    return rows if is_exact else None
