"""Tables of what to_dtype, normalize and the delivery make of each level of uint8.

The reference computes a table once, so that its numbers are torchvision's own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu.program import Call
from gpupipe.steps.normalize import Normalize
from gpupipe.steps.to_dtype import ToDtype

Calls = Sequence[Call]
LEVELS = torch.arange(256, dtype=torch.uint8)[None, None]
NUMPY_DTYPES = ("uint8", "float16", "float32", "float64")
_HIGHEST_LEVEL = 255


def can_look_up(calls: Calls, dtypes: Collection[str] = NUMPY_DTYPES) -> bool:
    """Whether the calls take images of uint8, and deliver one of the dtypes."""
    form = calls[-1].options.form
    if form.layout is not None or calls[0].spec.encoded:
        return False
    dtype = form.dtype
    for call in calls[:-1]:
        if call.primitive == "to_dtype":
            dtype = dtype or call.options[0]
    return calls[0].spec.dtype == "uint8" and (dtype or "uint8") in dtypes


def find_table(calls: Calls, channels: int) -> torch.Tensor:
    """Return what calls make of each level: a tensor (channels, 1, 256)."""
    return make_table(list_numbers(calls), calls[-1].options.form.dtype, channels)


def list_numbers(calls: Calls) -> tuple[tuple[str, Any], ...]:
    """Return the name and the options of each call before the delivery."""
    return tuple((call.primitive, call.options) for call in calls[:-1])


@lru_cache(maxsize=64)
def make_table(
    numbers: tuple[tuple[str, Any], ...], dtype: str | None, channels: int
) -> torch.Tensor:
    """Return what calls make of each value of uint8: a tensor (channels, 1, 256).

    Args:
        numbers: The name and the options of each call, to_dtype or normalize.
        dtype: The dtype to deliver; None keeps that of the last call.
        channels: The number of channels.
    """
    levels = LEVELS.expand(channels, 1, 256).contiguous()
    for primitive, options in numbers:
        if primitive == "to_dtype":
            levels = ToDtype(dtype=options[0], scale=options[1]).torch(levels, {})
        else:
            levels = Normalize(mean=options[0], std=options[1]).torch(levels, {})
    return levels if dtype is None else levels.to(getattr(torch, dtype))


@lru_cache(maxsize=64)
def make_numbers(
    numbers: tuple[tuple[str, Any], ...], dtype: str | None, channels: int
) -> NDArray[np.float32] | None:
    """Return [scale, mean, std] of each channel, (3, channels), in float32.

    `(level * scale - mean) / std` in float32 is the table to the bit, but for its last conversion
    to float16. None if no such numbers are known. The arguments are those of `make_table`.
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
    made = (np.arange(256, dtype=np.float32) * column[0] - column[1]) / column[2]
    is_exact = torch.equal(torch.from_numpy(made).to(table.dtype), table[:, 0])
    return rows if is_exact else None
