"""Kernels of the extension `gpupipe._kernels`, whose rules are tried before all other rules.

A kernel takes an RGB image of uint8. In one pass, it does one geometry, converts the values, and
writes the result to the slot of the sample. A geometry is a warp, a resize with an optional crop
and flip, or a flip. For example:

    ops       ResizeOp, CropOp, FlipOp, ToDtypeOp, NormalizeOp, DeliverOp
    once      find_geometry(match) -> geometry; None if the extension cannot do these operations
    a sample  geometry(pixels, row) -> (prepare_resize, (256, 341, 16, 58, ...), (224, 224))
              prepare_resize(pixels, options, (slot, table, coefficients), before) -> task

Invariants:

- `prepare_*` returns a task and computes nothing. `_extension.run` runs tasks without the GIL. A
  task keeps its arrays alive. It first runs the task `before`, which writes its input pixels.
- The rows of `pixels` are contiguous. `run` copies an image if needed; `prepare` does not.
- A geometry fits all samples of its batch. If one sample has a crop outside the resized image, the
  rules of single operations match instead.

A program of a decode, a crop and such a kernel becomes one task for each sample: see Preparation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.decoders.builtin.jpeg_window import JpegWindow
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.delivery import (
    CONVERTED,
    Conversion,
    DeliverOp,
    OutputBuffer,
    end_with_delivery,
    find_conversion,
)
from gpupipe.engines.cpu.ops import Array, Pixels, as_array, as_packed, scratch, view_as_array
from gpupipe.engines.cpu.program import (
    Content,
    Group,
    Kernel,
    Match,
    Maybe,
    Pattern,
    Rule,
    Task,
    match_pattern,
)
from gpupipe.engines.last_steps import make_coefficients
from gpupipe.runtime.installation import find_extension

_RGB = 3
_TORCH_HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
_extension = find_extension()

_Target = tuple[Array, Array | None, NDArray[np.float32] | None]
"""The output array (3, H, W); a table of the new value of each uint8 value, or None to keep the
values; and coefficients that compute the same values as the table, or None.
"""
_Prepare = Callable[[Array, tuple[object, ...], _Target, Task | None], Task]
"""A function of the extension, called with (pixels, options, target, before)."""
_Geometry = Callable[[Array, int], tuple[_Prepare, tuple[object, ...], ops.Size]]
"""Called with the pixels of a sample and its row in the batch. Returns the function to call, its
options, such as sizes and flags, and [height, width] of the result.
"""


def _find_warp(match: Match) -> _Geometry | None:
    warp = match[ops.WarpOp]
    if not _is_rgb(warp) or warp.interpolation != "bilinear":
        return None
    prepare, fill = _extension.prepare_warp, ops.spread_fill(warp.fill, _RGB)
    return lambda pixels, row: (prepare, (warp.matrices[row], fill), warp.sizes[row])


def _find_flip(match: Match) -> _Geometry | None:
    """Return the _Geometry of a flip; None if the images are not RGB in uint8.

    Without a FlipOp, the geometry keeps all pixels in place.
    """
    if not _is_rgb(match.ops[0]):
        return None
    prepare, flip = _extension.prepare_convert, match.get(ops.FlipOp)
    return lambda pixels, row: (prepare, _find_flips(flip, row), pixels.shape[:2])


def _find_resize(match: Match) -> _Geometry | None:
    """Return the _Geometry of a resize with an optional crop and flip.

    Return None if the images are not RGB in uint8, if torchvision does not resize them in uint8, or
    if a crop is not inside the resized image. Without antialiasing, torchvision's bilinear resize
    is in float32 on processors without AVX2.
    """
    resize, crop, flip = match[ops.ResizeOp], match.get(ops.CropOp), match.get(ops.FlipOp)
    is_bicubic = resize.interpolation == "bicubic"
    is_bilinear_uint8 = resize.antialias or _TORCH_HAS_AVX2
    if not is_bicubic and not (resize.interpolation == "bilinear" and is_bilinear_uint8):
        return None
    if not _is_rgb(resize):
        return None
    if crop is not None and not all(map(ops.is_inside, crop.windows, resize.sizes)):
        return None

    def call(pixels: Array, row: int) -> tuple[_Prepare, tuple[object, ...], ops.Size]:
        size = resize.sizes[row]
        top, left, height, width = (0, 0, *size) if crop is None else crop.windows[row]
        options = (*size, top, left, is_bicubic, resize.antialias, *_find_flips(flip, row))
        return _extension.prepare_resize, options, (height, width)

    return call


def _find_flips(flip: ops.FlipOp | None, row: int) -> tuple[int, ...]:
    return (0, 0) if flip is None else tuple(flip.flags[row])


def _is_rgb(op: ops.Op) -> bool:
    return op.spec.dtype == "uint8" and op.spec.channels == _RGB


def _as_rows(pixels: Pixels) -> Array:
    """Return RGB pixels as an array (H, W, C) with contiguous rows, copied if needed."""
    array = as_array(pixels)
    return array if array.strides[1:] == (_RGB, 1) else as_packed(array)


def _run_to_uint8(geometry: _Geometry, pixels: Pixels, row: int) -> Pixels:
    """Run a warp, resize or flip, and return the image, uint8 (H, W, C), in scratch memory."""
    rows = _as_rows(pixels)
    prepare, options, size = geometry(rows, row)
    image = scratch.take((*size, _RGB))
    _extension.run((prepare(rows, options, (image.transpose(2, 0, 1), None, None), None),))
    return image


@dataclass(frozen=True)
class _Delivery:
    """Warps, resizes or flips samples, and writes the converted values to their slots.

    Attributes:
        geometry: The warp, resize or flip before the conversion.
        conversion: The conversion of the values, and the output buffer.
    """

    geometry: _Geometry
    conversion: Conversion

    @cached_property
    def _tables(self) -> tuple[torch.dtype, Array | None, NDArray[np.float32] | None]:
        """The dtype of the batch, a lookup table, and coefficients that compute the same values.

        Table and coefficients are None if the uint8 values stay as they are. The coefficients
        alone are None if only the table gives the exact values.
        """
        conversions, table = self.conversion.conversions, self.conversion.table(_RGB)
        if table.dtype == torch.uint8 and not conversions:
            return table.dtype, None, None
        coefficients = make_coefficients(conversions, self.conversion.dtype, _RGB)
        return table.dtype, view_as_array(table[:, 0]), coefficients

    def prepare(self, pixels: Array, row: int, before: Task | None) -> Task | None:
        """Return the task that writes a sample to its slot; None if the sample has no slot.

        The task first runs `before`, which writes `pixels`; None if they exist already.
        """
        dtype, table, coefficients = self._tables
        prepare, options, size = self.geometry(pixels, row)
        output = self.conversion.output
        if not output.begin(row, (_RGB, *size), dtype):
            return None
        return prepare(pixels, options, (output.slot_array(row), table, coefficients), before)

    def run(self, pixels: Pixels, row: int) -> None:
        """Write a sample to its slot in the batch. Do nothing if `prepare` finds no slot for it.

        Args:
            pixels: The sample's image.
            row: The sample's position in the batch.
        """
        task = self.prepare(_as_rows(pixels), row, None)
        if task is not None:
            _extension.run((task,))


def _create_rules(
    name: str, pattern: Pattern, find: Callable[[Match], _Geometry | None]
) -> tuple[Rule, Rule]:
    """Return two rules for the geometries that `find` returns.

    The kernels of the first rule write to the slot; those of the second return a uint8 image.
    """

    def bind_delivery(match: Match) -> Kernel | None:
        geometry, conversion = find(match), find_conversion(match, has_bfloat16=True)
        if geometry is None or conversion is None:
            return None
        delivery = _Delivery(geometry, conversion)
        return end_with_delivery(name, match, delivery.run, delivery.prepare)

    def bind_image(match: Match) -> Kernel | None:
        geometry = find(match)
        return None if geometry is None else Kernel(name, partial(_run_to_uint8, geometry))

    return Rule((*pattern, *CONVERTED), bind_delivery), Rule(pattern, bind_image)


def create_rules() -> list[Rule]:
    """Return the rules of the extension; [] if the extension is not built, or is off."""
    if _extension is None:
        return []
    resize = ops.ResizeOp, Maybe(ops.CropOp), Maybe(ops.FlipOp)
    convert, _ = _create_rules("kernels.convert", (Maybe(ops.FlipOp),), _find_flip)
    _, resize_alone = _create_rules("kernels.resize", (ops.ResizeOp,), _find_resize)
    return [
        *_create_rules("kernels.warp", (ops.WarpOp,), _find_warp),
        *_create_rules("kernels.resize", resize, _find_resize),
        resize_alone,
        convert,
    ]


@dataclass(frozen=True)
class Preparation:
    """Prepares one task for a sample: decode and crop, both optional, and a kernel that delivers.

    Attributes:
        decode: The decode of an image file; None if the content is pixels.
        crop: The crop; None if there is none.
        kernel: The kernel that delivers. Its `prepare` must not be None.
        output: The buffer that the kernel writes to.
    """

    decode: ops.DecodeOp | None
    crop: ops.CropOp | None
    kernel: Kernel
    output: OutputBuffer

    def prepare(self, content: Content, row: int) -> Task | None:
        """Return the task of a sample; None if its operations must run one by one instead."""
        before: Task | None = None
        if self.decode is not None:
            assert isinstance(content, EncodedImage)
            image, decoder = content, content.decoder
            if not isinstance(decoder, JpegWindow) or not image.is_upright(self.decode.options):
                return None
            # A file that cannot be decoded must not decide the shape of the batch.
            if not self.output.is_allocated:
                return None
            content = scratch.take((*image.size, _RGB))
            window = self.decode.windows[row] if self.decode.windows else None
            before = decoder.prepare(image.header, image.data, window, content)
        assert isinstance(content, np.ndarray) and self.kernel.prepare is not None
        if self.crop is not None:
            if not ops.is_inside(self.crop.windows[row], content.shape):
                return None
            top, left, height, width = self.crop.windows[row]
            content = content[top : top + height, left : left + width]
        if content.strides[1:] != (_RGB, 1):
            return None
        return self.kernel.prepare(content, row, before)


def find_preparation(groups: Sequence[Group]) -> Preparation | None:
    """Return the Preparation that joins `groups` into one task; None if that is not possible."""
    if not groups:
        return None
    *before, (kernel, (*_, deliver)) = groups
    if kernel.prepare is None or not isinstance(deliver, DeliverOp):
        return None
    first = [op for _, part in before for op in part]
    match = match_pattern((Maybe(ops.DecodeOp), Maybe(ops.CropOp)), first)
    if match is None or len(match.ops) < len(first):
        return None
    decode, crop = match.get(ops.DecodeOp), match.get(ops.CropOp)
    if crop is not None and crop.fill is not None:
        return None
    if decode is not None and (decode.options.mode, decode.options.dtype) != ("rgb", "uint8"):
        return None
    return Preparation(decode, crop, kernel, deliver.output)


def run_tasks(tasks: Sequence[Task]) -> list[bool]:
    """Run the tasks of several samples in one call without the GIL, one after the other.

    Returns:
        Whether each task succeeded. A task fails if its image is damaged.
    """
    done: list[bool] = _extension.run(tasks)
    return done
