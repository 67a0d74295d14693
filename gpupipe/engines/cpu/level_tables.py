"""The tables of levels that the recorded calls to_dtype, normalize and deliver ask for."""

from __future__ import annotations

from collections.abc import Collection

import torch

from gpupipe.engines.cpu.program import Calls
from gpupipe.engines.value_tables import Numbers, make_table

NUMPY_DTYPES = ("uint8", "float16", "float32", "float64")


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


def list_numbers(calls: Calls) -> Numbers:
    """Return the name and the options of each call before the delivery."""
    return tuple((call.primitive, call.options) for call in calls[:-1])
