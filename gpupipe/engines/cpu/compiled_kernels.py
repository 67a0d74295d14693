"""Kernels of the extension `gpupipe._kernels`, whose rules are tried before all other rules.

A kernel takes an RGB image of uint8. In one pass, it does one geometry, and either returns an image
or converts the values and writes them to the slot of the sample. A geometry is a warp, a resize
with an optional crop and flip, or a flip. For example:

    ops       ResizeOp, CropOp, FlipOp, ToDtypeOp, NormalizeOp, DeliverOp
    a batch   resize_stage(sizes, windows, flips, is_cubic, antialias, output) -> Stage
    a sample  run_program(stage, [row], [pixels])      in a program of several stages: see `stages`

A geometry fits all samples of its batch. If one sample has a crop outside the resized image, the
rules of single operations match instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import kernels, ops
from gpupipe.engines.cpu.delivery import (
    CONVERTED,
    Conversion,
    DeliverOp,
    end_with_delivery,
    find_conversion,
)
from gpupipe.engines.cpu.ops import Array, Pixels, as_array, as_packed, view_as_array
from gpupipe.engines.cpu.program import (
    BlendOp,
    Content,
    Kernel,
    Match,
    Maybe,
    Pattern,
    Rule,
    Stage,
    SwitchOp,
)
from gpupipe.engines.cpu.stages import create_program
from gpupipe.engines.last_steps import Conversions, make_coefficients, make_table
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.installation import find_extension

STAGE_DTYPES = ("uint8", "float32")
"""The dtypes of images that stages may run on."""
_RGB = 3
_CHANNELS = {"rgb": 3, "gray": 1}
_TORCH_HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
_extension = find_extension()
_jpeg = find_extension("_jpeg")

_Output = tuple[
    Array | list[Array], Array | None, NDArray[np.float32] | None, Array | None, Array | None
]
"""The batch (B, 3, H, W), or the slot (1, 3, H, W) of each sample; a table of the new value of each
uint8 value, or None to keep the values; coefficients that compute the same values as the table, or
None; and the windows to erase and the value to erase them with, or None.
"""
_Tables = tuple[torch.dtype, Array | None, NDArray[np.float32] | None]
"""The dtype of the batch, and the table and the coefficients of an _Output."""
_Create = Callable[[_Output | None], Stage]
"""Returns the stage of a geometry. Without an output, the stage passes an image on."""


def find_warp(match: Match) -> _Create | None:
    """Return the _Create of a warp; None if it is not bilinear, of RGB images of uint8.

    Return None, too, if a result has a side of more than 2**20 pixels.
    """
    warp = match[ops.WarpOp]
    if not _is_rgb(warp) or warp.interpolation != "bilinear" or not _can_make(warp.sizes):
        return None
    fill = ops.spread_fill(warp.fill, _RGB)

    def create(output: _Output | None) -> Stage:
        matrices = np.ascontiguousarray(warp.matrices)
        return Stage(_extension.warp_stage(matrices, warp.sizes, fill, output))

    return create


def _find_flip(match: Match) -> _Create | None:
    """Return the _Create of a flip; None if the images are not RGB in uint8.

    Without a FlipOp, the geometry keeps all pixels in place.
    """
    if not _is_rgb(match.ops[0]):
        return None
    flip = match.get(ops.FlipOp)
    flags = None if flip is None else flip.flags.astype(np.uint8)
    return lambda output: Stage(_extension.deliver_stage(flags, output))


def find_resize(match: Match) -> _Create | None:
    """Return the _Create of a resize with an optional crop and flip.

    Return None if the images are not RGB in uint8, if torchvision does not resize them in uint8, if
    a crop is not inside the resized image, or if that has a side of more than 2**20 pixels. Without
    antialiasing, torchvision's bilinear resize is in float32 on processors without AVX2.
    """
    resize, crop, flip = match[ops.ResizeOp], match.get(ops.CropOp), match.get(ops.FlipOp)
    is_bicubic = resize.interpolation == "bicubic"
    is_bilinear_uint8 = resize.antialias or _TORCH_HAS_AVX2
    if not is_bicubic and not (resize.interpolation == "bilinear" and is_bilinear_uint8):
        return None
    if not _is_rgb(resize) or not _can_make(resize.sizes):
        return None
    if crop is not None and not ops.are_inside(crop.windows, resize.sizes):
        return None

    def create(output: _Output | None) -> Stage:
        sizes = resize.sizes
        if crop is not None:
            windows = crop.windows
        else:
            windows = np.zeros((len(sizes), 4), np.int64)
            windows[:, 2:] = sizes
        flags = np.zeros((len(sizes), 2), np.uint8)
        if flip is not None:
            flags[:] = flip.flags
        options = is_bicubic, resize.antialias, output
        return Stage(_extension.resize_stage(sizes, windows, flags, *options))

    return create


def _can_make(sizes: NDArray[np.int64]) -> bool:
    """Return whether the extension makes images of these [height, width], (B, 2)."""
    return not sizes.size or bool(sizes.max() <= _extension.MAX_SIDE)


def _is_rgb(op: ops.Op) -> bool:
    return op.spec.dtype == "uint8" and op.spec.channels == _RGB


def run_alone(stage: Stage, content: Content, row: int) -> Array:
    """Run a stage on one sample; return the pixels, (H, W, C), in memory of their own.

    Raises:
        ValueError: The stage cannot do this sample, such as one whose window is outside.
    """
    array = as_array(cast(Pixels, content))
    pixel = array.itemsize * array.shape[2]
    is_packed = array.strides[1:] == (pixel, array.itemsize) and array.flags.aligned
    pixels = _extension.run_stage(stage, row, array if is_packed else as_packed(array))
    if pixels is None and max(array.shape) > _extension.MAX_SIDE:
        raise ValueError(
            f"a side of {max(array.shape):,} pixels, but engine cpu takes up to "
            f"{_extension.MAX_SIDE:,}: use engine: dataloader"
        )
    if pixels is None:
        raise ValueError(f"an image of {array.shape} in {array.dtype} has another form than stated")
    return cast(Array, np.asarray(pixels))


@dataclass(frozen=True)
class _Delivery:
    """Warps, resizes or flips samples, and writes the converted values to their slots.

    Attributes:
        create: Returns the stage of the warp, resize or flip before the conversion.
        conversion: The conversion of the values, and the output buffer.
        deliver: The delivery.
        erase: The windows that are erased in the slots, or None.
    """

    create: _Create
    conversion: Conversion
    deliver: DeliverOp
    erase: ops.EraseOp | None

    @property
    def _tables(self) -> _Tables:
        """The dtype of the batch, a lookup table, and coefficients that compute the same values.

        Table and coefficients are None if the uint8 values stay as they are. The coefficients
        alone are None if only the table gives the exact values.
        """
        return _make_tables(self.conversion.conversions, self.conversion.dtype)

    @cached_property
    def _geometry(self) -> Stage:
        return self.create(None)

    def stage(self) -> Stage | None:
        """Return the stage that writes all samples to their slots, and erases there.

        Return None if the samples differ in size and may not, if there is no memory for them, or if
        noise is written to windows.
        """
        dtype, table, coefficients = self._tables
        if self.erase is not None and self.erase.seeds is not None:
            return None
        batch: Array | list[Array] | None = self.deliver.begin_all(_RGB, dtype)
        if batch is None:
            batch = self.deliver.begin_each(_RGB, dtype)
        if batch is None:
            return None
        if self.erase is None:
            return self.create((batch, table, coefficients, None, None))
        value = torch.tensor(self.erase.value, dtype=getattr(torch, self.erase.spec.dtype))
        value = value.expand(_RGB).to(dtype).contiguous()
        windows = self.erase.windows
        return self.create((batch, table, coefficients, windows, view_as_array(value)))

    def run(self, pixels: Pixels, row: int) -> None:
        """Write a sample to its slot in the batch; do nothing if it has none.

        Args:
            pixels: The sample's image.
            row: The sample's position in the batch.
        """
        image = run_alone(self._geometry, pixels, row)
        dtype, table, coefficients = self._tables
        output = self.conversion.output
        if output.begin(row, (_RGB, *image.shape[:2]), dtype):
            slot = output.slot_array(row)[None], table, coefficients
            _extension.run_program(_extension.deliver_stage(None, slot), (0,), (image,))


@lru_cache(maxsize=64)
def _make_tables(conversions: Conversions, delivered: str | None) -> _Tables:
    table = make_table(conversions, delivered, _RGB)
    if table.dtype == torch.uint8 and not conversions:
        return table.dtype, None, None
    coefficients = make_coefficients(conversions, delivered, _RGB)
    return table.dtype, view_as_array(table[:, 0]), coefficients


def _create_rules(
    name: str, pattern: Pattern, find: Callable[[Match], _Create | None]
) -> tuple[Rule, Rule]:
    """Return two rules for the geometries that `find` returns.

    The kernels of the first rule write to the slot; those of the second return a uint8 image.
    """

    def bind_delivery(match: Match) -> Kernel | None:
        create, conversion = find(match), find_conversion(match, has_bfloat16=True)
        if create is None or conversion is None:
            return None
        delivery = _Delivery(create, conversion, match[DeliverOp], match.get(ops.EraseOp))
        return end_with_delivery(name, match, delivery.run, delivery.stage)

    def bind_image(match: Match) -> Kernel | None:
        create = find(match)
        return None if create is None else stage_kernel(name, lambda: create(None))

    return Rule((*pattern, *CONVERTED), bind_delivery), Rule(pattern, bind_image)


def stage_kernel(name: str, create: Callable[[], Stage]) -> Kernel:
    """Return the kernel of a stage that passes an image on.

    Args:
        name: The name of the kernel in profiles and reports.
        create: Returns the stage. Called once a batch.
    """
    stages: list[Stage] = []

    def stage() -> Stage:
        if not stages:  # two threads may create one each, which are alike
            stages.append(create())
        return stages[0]

    return Kernel(name, lambda content, row: run_alone(stage(), content, row), stage)


def _bind_decode(match: Match) -> Kernel:
    decode = match[ops.DecodeOp]
    mode, _, dtype = decode.options

    def stage() -> Stage | None:
        if _jpeg is None or dtype != "uint8" or decode.sizes is None:
            return None
        return Stage(_jpeg.decode_stage(decode.sizes, decode.windows, _CHANNELS[mode]))

    return Kernel("decode", lambda file, row: kernels.run_decode(decode, file, row), stage)


def _bind_crop(match: Match) -> Kernel:
    crop = match[ops.CropOp]

    def stage() -> Stage | None:
        windows = crop.windows
        if crop.fill is None:
            return Stage(_extension.crop_stage(windows))
        fill = _as_pixel(crop.fill, crop.spec)
        return None if fill is None else Stage(_extension.window_stage(windows, fill))

    return Kernel("crop", lambda pixels, row: kernels.run_crop(crop, pixels, row), stage)


def _as_pixel(fill: ops.Fill, spec: Spec) -> bytes | None:
    """Return the bytes of a pixel; None if stages do not run on images of this spec."""
    if spec.dtype not in STAGE_DTYPES or spec.channels is None:
        return None
    return np.full(spec.channels, fill).astype(spec.dtype).tobytes()


def _bind_pad(match: Match) -> Kernel | None:
    pad = match[ops.PadOp]
    if pad.spec.dtype not in STAGE_DTYPES:
        return None

    def create() -> Stage:
        return Stage(_extension.pad_stage(pad.borders, pad.mode))

    return stage_kernel("kernels.pad", create)


def _bind_transpose(match: Match) -> Kernel | None:
    if match[ops.TransposeOp].spec.dtype not in STAGE_DTYPES:
        return None
    return stage_kernel("kernels.transpose", lambda: Stage(_extension.transpose_stage()))


def _bind_erase(match: Match) -> Kernel | None:
    erase = match[ops.EraseOp]
    value = _as_pixel(erase.value, erase.spec)
    if value is None or erase.seeds is not None:
        return None
    return stage_kernel(
        "kernels.erase", lambda: Stage(_extension.erase_stage(erase.windows, value))
    )


def _bind_switch(match: Match) -> Kernel:
    switch = match[SwitchOp]

    def stage() -> Stage | None:
        branches = tuple(create_program(branch.groups) for branch in switch.branches)
        if not any(branches):
            return None
        return Stage(_extension.switch_stage(switch.index, branches))

    return Kernel("switch", lambda pixels, row: kernels.run_switch(switch, pixels, row), stage)


def _bind_blend(match: Match) -> Kernel:
    blend = match[BlendOp]

    def stage() -> Stage | None:
        branches = tuple(create_program(branch.groups) for branch in blend.branches)
        if not all(branches):
            return None
        weights = np.ascontiguousarray(blend.weights, np.float64)
        return Stage(_extension.blend_stage(weights, branches))

    return Kernel("blend", lambda pixels, row: kernels.run_blend(blend, pixels, row), stage)


def create_rules() -> list[Rule]:
    """Return the rules of the extension; [] if the extension is not built, or is off."""
    if _extension is None:
        return []
    resize = ops.ResizeOp, Maybe(ops.CropOp), Maybe(ops.FlipOp)
    convert, _ = _create_rules("kernels.convert", (Maybe(ops.FlipOp),), _find_flip)
    _, resize_alone = _create_rules("kernels.resize", (ops.ResizeOp,), find_resize)
    _, flip_alone = _create_rules("kernels.flip", (ops.FlipOp,), _find_flip)
    return [
        *_create_rules("kernels.warp", (ops.WarpOp,), find_warp),
        *_create_rules("kernels.resize", resize, find_resize),
        resize_alone,
        convert,
        flip_alone,
        Rule((ops.DecodeOp,), _bind_decode),
        Rule((ops.CropOp,), _bind_crop),
        Rule((ops.PadOp,), _bind_pad),
        Rule((ops.TransposeOp,), _bind_transpose),
        Rule((ops.EraseOp,), _bind_erase),
        Rule((SwitchOp,), _bind_switch),
        Rule((BlendOp,), _bind_blend),
    ]
