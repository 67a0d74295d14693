"""Kernels of the extension for images that are not RGB in uint8, such as those of arrays.

Deliveries and flips take uint8 and float32 of 1 to 4 channels. Warps and resizes of uint8 run the
kernels for RGB on three channels at a time:

    channels   images on which a kernel for RGB runs
    1          (c0, c0, c0)
    2          (c0, c1, c1)
    4          (c0, c1, c2) and (c3, c3, c3)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.compiled_kernels import (
    STAGE_DTYPES,
    find_resize,
    find_warp,
    run_alone,
    stage_kernel,
)
from gpupipe.engines.cpu.delivery import (
    CONVERTED,
    DeliverOp,
    end_with_delivery,
    find_conversion,
)
from gpupipe.engines.cpu.ops import Array, Pixels, view_as_array
from gpupipe.engines.cpu.program import Kernel, Match, Maybe, Pattern, Rule, Stage
from gpupipe.engines.last_steps import make_coefficients
from gpupipe.runtime.installation import find_extension

_RGB, _MAX_CHANNELS = 3, 4
_extension = find_extension()

_Find = Callable[[Match], Callable[[None], Stage] | None]
_Values = tuple[torch.dtype, Array | None, NDArray[np.float32] | None]
"""The delivered dtype; the table of new values, or None; the coefficients, or None."""


@dataclass(frozen=True)
class _AnyDelivery:
    """Flips samples, converts their values, and writes them to their slots.

    Attributes:
        match: The operations.
        channels: The number of channels.
        values: How values are converted.
    """

    match: Match
    channels: int
    values: _Values

    @cached_property
    def _flips(self) -> NDArray[np.uint8] | None:
        flip = self.match.get(ops.FlipOp)
        return None if flip is None else flip.flags.astype(np.uint8)

    def stage(self) -> Stage | None:
        """Return the stage that writes all samples to their slots, and erases there.

        Return None if the samples differ in size, if there is no memory for them, or if noise is
        written to windows.
        """
        dtype, table, coefficients = self.values
        batch = self.match[DeliverOp].begin_all(self.channels, dtype)
        erase = self.match.get(ops.EraseOp)
        if batch is None or (erase is not None and erase.seeds is not None):
            return None
        output: tuple[object, ...] = batch, table, coefficients
        if erase is not None:
            value = torch.tensor(erase.value, dtype=getattr(torch, erase.spec.dtype))
            value = value.expand(self.channels).to(dtype).contiguous()
            output += erase.windows, view_as_array(value)
        return Stage(_extension.deliver_any_stage(self._flips, output))

    def run(self, pixels: Pixels, row: int) -> None:
        """Write a sample to its slot in the batch; do nothing if it has none."""
        image = run_alone(Stage(_extension.program(())), pixels, row)
        dtype, table, coefficients = self.values
        output = self.match[DeliverOp].output
        if output.begin(row, (self.channels, *image.shape[:2]), dtype):
            flips = None if self._flips is None else self._flips[row : row + 1]
            slot = output.slot_array(row)[None], table, coefficients
            _extension.run_program(_extension.deliver_any_stage(flips, slot), (0,), (image,))


def _bind_delivery(match: Match) -> Kernel | None:
    spec = match.ops[0].spec
    if spec.encoded or spec.layout != "CHW" or spec.channels is None:
        return None
    is_few = 1 <= spec.channels <= _MAX_CHANNELS
    values = (_find_floats if spec.dtype == "float32" else _find_levels)(match, spec.channels)
    if values is None or not is_few:
        return None
    delivery = _AnyDelivery(match, spec.channels, values)
    return end_with_delivery("kernels.deliver", match, delivery.run, delivery.stage)


def _find_levels(match: Match, channels: int) -> _Values | None:
    """Return how values of uint8 are converted; None if the stage cannot do that."""
    conversion = find_conversion(match, has_bfloat16=True)
    if conversion is None or channels == _RGB:  # for RGB there are faster kernels
        return None
    conversions, table = conversion.conversions, conversion.table(channels)
    if table.dtype == torch.uint8 and not conversions:
        return table.dtype, None, None
    coefficients = make_coefficients(conversions, conversion.dtype, channels)
    return table.dtype, view_as_array(table[:, 0]), coefficients


def _find_floats(match: Match, channels: int) -> _Values | None:
    """Return how values of float32 are converted; None if the stage cannot do that."""
    to_dtype, normalize = match.get(ops.ToDtypeOp), match.get(ops.NormalizeOp)
    delivered = match[DeliverOp].output.format.dtype
    if delivered not in (None, "float32") or (to_dtype and to_dtype.dtype != "float32"):
        return None
    if normalize is None:
        return torch.float32, None, None
    coefficients = np.ones((3, channels), np.float32)
    coefficients[1], coefficients[2] = normalize.mean, normalize.std
    return torch.float32, None, coefficients


def _bind_flip(match: Match) -> Kernel | None:
    flip = match[ops.FlipOp]
    if flip.spec.dtype not in STAGE_DTYPES:
        return None
    flags = flip.flags.astype(np.uint8)
    return stage_kernel("kernels.flip", lambda: Stage(_extension.flip_stage(flags)))


def _bind_by_three(name: str, find: _Find, match: Match) -> Kernel | None:
    """Return the kernel that runs what `find` returns for RGB on three channels at a time."""
    spec = match.ops[0].spec
    if spec.dtype != "uint8" or spec.channels not in (1, 2, 4):
        return None
    channels = spec.channels
    creates = [
        find(_take_channels(match, [min(first + c, channels - 1) for c in range(_RGB)]))
        for first in range(0, channels, _RGB)
    ]
    if not all(creates):
        return None

    def create() -> Stage:
        parts = tuple(part(None) for part in creates if part is not None)
        return Stage(_extension.channels_stage(parts))

    return stage_kernel(name, create)


def _take_channels(match: Match, channels: list[int]) -> Match:
    """Return the operations for images of these channels."""
    first, *others = match.ops
    if isinstance(first, ops.WarpOp) and first.fill is not None:
        fill = ops.spread_fill(first.fill, first.spec.channels or 1)
        assert fill is not None
        first = replace(first, fill=tuple(fill[channels].tolist()))
    return Match([replace(first, spec=first.spec.with_channels(_RGB)), *others])


def create_rules() -> list[Rule]:
    """Return the rules of these kernels; [] if the extension is not built, or is off."""
    if _extension is None:
        return []
    by_three: list[tuple[str, Pattern, _Find]] = [
        ("kernels.warp", (ops.WarpOp,), find_warp),
        ("kernels.resize", (ops.ResizeOp, Maybe(ops.CropOp), Maybe(ops.FlipOp)), find_resize),
        ("kernels.resize", (ops.ResizeOp,), find_resize),
    ]
    return [
        *(Rule(pattern, partial(_bind_by_three, name, find)) for name, pattern, find in by_three),
        Rule((Maybe(ops.FlipOp), *CONVERTED), _bind_delivery),
        Rule((ops.FlipOp,), _bind_flip),
    ]
