"""Does `erase` in the memory of the batch, after the sample has been written there.

Most pipelines end with `random_erasing`. So the conversion to floats before it and the delivery
after it are one pass over the image.
"""

from __future__ import annotations

from typing import Any

import torch

from gpupipe.engines.cpu.delivery import Destination
from gpupipe.engines.cpu.program import Calls, Kernel, Table


def add_erasing(table: Table) -> Table:
    """Return a table whose kernels that deliver also take an `erase` before the delivery."""
    added = {
        (*group[:-1], "erase", "deliver"): [_with_erasing(kernel) for kernel in kernels]
        for group, kernels in table.items()
        if group[-1] == "deliver"
    }
    return {**table, **added}


def _with_erasing(kernel: Kernel) -> Kernel:
    prepare = kernel.prepare

    def run(pixels: Any, calls: Calls, row: int) -> Any:
        kernel.run(pixels, _without_erase(calls), row)
        _erase(calls, row)

    def prepare_without_erase(pixels: Any, calls: Calls, row: int, before: Any) -> Any:
        assert prepare is not None
        return prepare(pixels, _without_erase(calls), row, before)

    def takes(calls: Calls) -> bool:
        is_image = calls[-1].options.form.layout is None
        return is_image and kernel.takes(_without_erase(calls))

    if prepare is None:
        return Kernel(run, kernel.op, takes, needs_torchvision=kernel.needs_torchvision)
    return Kernel(run, kernel.op, takes, prepare_without_erase, _erase, kernel.needs_torchvision)


def _without_erase(calls: Calls) -> Calls:
    return [*calls[:-2], calls[-1]]


def _erase(calls: Calls, row: int) -> None:
    erase, destination = calls[-2], calls[-1].options
    top, left, height, width = erase.rows[row]
    if not height or not width:
        return
    place = _find_slot(destination, row)
    if place is not None:
        value = torch.tensor(erase.options, dtype=getattr(torch, erase.spec.dtype))
        place[:, top : top + height, left : left + width] = value[:, None, None]


def _find_slot(destination: Destination, row: int) -> torch.Tensor | None:
    """Return the part of the batch that holds a sample, (C, H, W); None if none does."""
    if destination.batch is None:
        return None
    return destination.place(row, destination.shapes[row], destination.batch.dtype)
