"""Kernels of the extension that move pixels, for images of 1 to 4 channels of uint8 or float32.

In one pass, a kernel does one geometry, and either returns an image or converts the values and
writes them to the slot of the sample. A geometry is a warp, a resize with an optional crop and
flip, a pad with an optional flip, or a flip. For example:

    ops       ResizeOp, CropOp, FlipOp, ToDtypeOp, NormalizeOp, DeliverOp
    a batch   resize_stage(sizes, windows, flips, is_cubic, antialias, output) -> Stage

A geometry fits all samples of its batch. If one sample has a crop outside the resized image, the
rules of single operations match instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.compiled_kernels import (
    CreateStage,
    Slots,
    StageOutput,
    as_pixel,
    can_make,
    create_noise_stage,
    is_image,
    run_alone,
    stage_kernel,
)
from gpupipe.engines.cpu.compiled_resize import find_nearest, find_resize
from gpupipe.engines.cpu.delivery import CONVERTED, DeliverOp, end_with_delivery, find_conversion
from gpupipe.engines.cpu.patterns import Match, Maybe, Pattern
from gpupipe.engines.cpu.pixels import Array, Pixels, view_as_array
from gpupipe.engines.cpu.program import Kernel, Rule, Stage
from gpupipe.engines.last_steps import Conversions, make_coefficients, make_table
from gpupipe.runtime.installation import find_extension

_extension = find_extension()

_Values = tuple[torch.dtype, Array | None, NDArray[np.float32] | None]
"""What delivery needs: the dtype of the batch, and the table and coefficients of a StageOutput."""
_NOISE = {getattr(torch, name): name for name in ("float32", "float16", "bfloat16")}
"""The dtypes of batches that the extension writes noise to."""


def _find_warp(match: Match) -> CreateStage | None:
    """Return the CreateStage of a warp, affine or of perspective; None if a stage cannot do it."""
    warp = match.ops[0]
    assert isinstance(warp, ops.ResampleOp)
    if not is_image(warp) or warp.interpolation not in ("nearest", "bilinear"):
        return None
    # A nearest warp of float32 has to agree with that of float16, which OpenCV does.
    if warp.interpolation == "nearest" and warp.spec.dtype != "uint8":
        return None
    if not can_make(warp.sizes):
        return None
    fill = ops.spread_fill(warp.fill, warp.spec.channels or 1)

    def create(output: StageOutput | None) -> Stage:
        matrices, is_nearest = np.ascontiguousarray(warp.matrices), warp.interpolation == "nearest"
        return Stage(_extension.warp_stage(matrices, warp.sizes, is_nearest, fill, output))

    return create


def _find_flip(match: Match) -> CreateStage | None:
    """Return the CreateStage of a flip; None if stages do not run on the images.

    Without a FlipOp, the geometry keeps all pixels in place.
    """
    if not is_image(match.ops[0]):
        return None
    flip = match.get(ops.FlipOp)
    flags = None if flip is None else flip.flags
    return lambda output: Stage(_extension.deliver_stage(flags, output))


def _find_pad(match: Match) -> CreateStage | None:
    """Return the CreateStage of a pad with an optional flip; None if stages cannot do it."""
    pad, flip = match[ops.PadOp], match.get(ops.FlipOp)
    if not is_image(pad):
        return None
    flags = None if flip is None else flip.flags
    return lambda output: Stage(_extension.pad_stage(pad.borders, pad.mode, flags, output))


def _find_window(match: Match) -> CreateStage | None:
    """Return the CreateStage of a crop with a fill and a flip or none; None without a fill."""
    crop, flip = match[ops.CropOp], match.get(ops.FlipOp)
    fill = None if crop.fill is None else as_pixel(crop.fill, crop.spec)
    if fill is None:
        return None
    flags = None if flip is None else flip.flags
    return lambda output: Stage(_extension.window_stage(crop.windows, fill, flags, output))


def _find_values(match: Match) -> Callable[[], _Values] | None:
    """Return what computes the _Values of the last operations; None if stages cannot do them."""
    spec = match.ops[0].spec
    channels = spec.channels
    if spec.encoded or spec.layout != "CHW" or channels is None:
        return None
    if spec.dtype == "float32":
        return _find_floats(match, channels)
    conversion = find_conversion(match, is_compiled=True)
    if conversion is None:
        return None
    conversions, dtype = conversion.conversions, conversion.dtype
    return lambda: _make_values(conversions, dtype, channels)


def _find_floats(match: Match, channels: int) -> Callable[[], _Values] | None:
    """Return what computes the _Values of float32; None if their dtype changes."""
    to_dtype, normalize = match.get(ops.ToDtypeOp), match.get(ops.NormalizeOp)
    delivered = match[DeliverOp].output.format.dtype
    if delivered not in (None, "float32") or (to_dtype and to_dtype.dtype != "float32"):
        return None
    coefficients = None
    if normalize is not None:
        coefficients = np.ones((3, channels), np.float32)
        coefficients[1], coefficients[2] = normalize.mean, normalize.std
    return lambda: (torch.float32, None, coefficients)


@lru_cache(maxsize=64)
def _make_values(conversions: Conversions, delivered: str | None, channels: int) -> _Values:
    """Return the _Values of uint8.

    Table and coefficients are None if the values stay as they are. The coefficients alone are None
    if only the table gives the exact values.
    """
    table = make_table(conversions, delivered, channels)
    if table.dtype == torch.uint8 and not conversions:
        return table.dtype, None, None
    coefficients = make_coefficients(conversions, delivered, channels)
    return table.dtype, view_as_array(table[:, 0]), coefficients


@lru_cache(maxsize=64)
def _make_pixel(value: ops.Fill, before: str, channels: int, dtype: torch.dtype) -> Array:
    """Return the pixel (channels,) of a value that is first rounded to the dtype `before`."""
    pixel = torch.tensor(value, dtype=getattr(torch, before)).expand(channels)
    return view_as_array(pixel.to(dtype).contiguous())


@dataclass(frozen=True)
class _Delivery:
    """Warps, resizes or flips samples, and writes the converted values to their slots.

    Attributes:
        create: Returns the stage of the warp, resize or flip before the conversion.
        channels: The number of channels.
        find_values: Computes how values are converted.
        deliver: The delivery.
        erase: The windows that are erased in the slots, or None.
    """

    create: CreateStage
    channels: int
    find_values: Callable[[], _Values]
    deliver: DeliverOp
    erase: ops.EraseOp | None

    @cached_property
    def _geometry(self) -> Stage:
        return self.create(None)

    def stage(self) -> Stage | None:
        """Return the stage that writes all samples to their slots, and erases there.

        Return None if the samples differ in size and may not, if there is no memory for them, or if
        the extension writes no noise of the dtype.
        """
        dtype, table, coefficients = self.find_values()
        if not self._can_erase(dtype):
            return None
        batch: Slots | None = self.deliver.begin_all(self.channels, dtype)
        if batch is None:
            batch = self.deliver.begin_each(self.channels, dtype)
        if batch is None:
            return None
        erase = self.erase
        if erase is None:
            return self.create((batch, table, coefficients, None, None))
        if erase.seeds is not None:
            write = self.create((batch, table, coefficients, None, None))
            fill = create_noise_stage(erase, (batch, table, None))
            return Stage(_extension.program((write, fill)))
        value = _make_pixel(erase.value, erase.spec.dtype, self.channels, dtype)
        return self.create((batch, table, coefficients, erase.windows, value))

    def _can_erase(self, dtype: torch.dtype) -> bool:
        """Return whether a stage erases in a batch of this dtype. It rounds noise only once."""
        if self.erase is None or self.erase.seeds is None:
            return True
        return dtype in _NOISE and self.erase.spec.dtype in ("float32", _NOISE[dtype])

    def run(self, pixels: Pixels, row: int) -> None:
        """Write a sample to its slot in the batch; do nothing if it has none.

        Args:
            pixels: The sample's image.
            row: The sample's position in the batch.
        """
        image = run_alone(self._geometry, pixels, row)
        dtype, table, coefficients = self.find_values()
        output = self.deliver.output
        if output.begin(row, (self.channels, *image.shape[:2]), dtype):
            slot = output.slot_array(row)[None], table, coefficients
            _extension.run_program(_extension.deliver_stage(None, slot), (0,), (image,))


def _create_rules(
    name: str, pattern: Pattern, find: Callable[[Match], CreateStage | None]
) -> tuple[Rule, Rule]:
    """Return two rules for the geometries that `find` returns.

    The kernels of the first rule write to the slot; those of the second return an image.
    """

    def bind_delivery(match: Match) -> Kernel | None:
        create, values = find(match), _find_values(match)
        if create is None or values is None:
            return None
        channels = match.ops[0].spec.channels or 1
        delivery = _Delivery(create, channels, values, match[DeliverOp], match.get(ops.EraseOp))
        return end_with_delivery(name, match, delivery.run, delivery.stage)

    def bind_image(match: Match) -> Kernel | None:
        create = find(match)
        return None if create is None else stage_kernel(name, lambda: create(None))

    return Rule((*pattern, *CONVERTED), bind_delivery), Rule(pattern, bind_image)


def create_rules() -> list[Rule]:
    """Return the rules of these kernels; [] if the extension is not built, or is off."""
    if _extension is None:
        return []
    resize = ops.ResizeOp, Maybe(ops.CropOp), Maybe(ops.FlipOp)
    convert, _ = _create_rules("kernels.convert", (Maybe(ops.FlipOp),), _find_flip)
    _, resize_alone = _create_rules("kernels.resize", (ops.ResizeOp,), find_resize)
    pad, pad_alone = _create_rules("kernels.pad", (ops.PadOp, Maybe(ops.FlipOp)), _find_pad)
    window, _ = _create_rules("kernels.pad", (ops.CropOp, Maybe(ops.FlipOp)), _find_window)
    _, flip_alone = _create_rules("kernels.flip", (ops.FlipOp,), _find_flip)
    nearest = ops.ResizeOp, ops.FlipOp, ops.CropOp
    return [
        *_create_rules("kernels.warp", (ops.WarpOp,), _find_warp),
        *_create_rules("kernels.warp", (ops.PerspectiveOp,), _find_warp),
        *_create_rules("kernels.resize", nearest, find_nearest),
        *_create_rules("kernels.resize", resize, find_resize),
        resize_alone,
        pad,
        pad_alone,
        window,
        convert,
        flip_alone,
    ]
