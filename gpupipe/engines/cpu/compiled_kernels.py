"""Kernels of the extension `gpupipe._kernels` that pass an image on, and those of branches.

    a batch   transpose_stage() -> Stage
    a sample  run_stage(stage, row, pixels), or in a program of several stages: see `stages`

`compiled_geometry` has the kernels that write to the slots of a batch, and `color_stages` those of
colours.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.cpu import kernels, ops
from gpupipe.engines.cpu.patterns import Match
from gpupipe.engines.cpu.pixels import Array, Pixels, as_array, as_packed
from gpupipe.engines.cpu.program import BlendOp, Content, Kernel, Rule, Stage, SwitchOp
from gpupipe.engines.cpu.stages import create_program
from gpupipe.engines.cpu.unequal_buffer import UnequalSlots
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.installation import find_extension

STAGE_DTYPES = ("uint8", "float32")
"""The dtypes of images that stages may run on."""
Slots = Array | list[Array] | UnequalSlots
"""Where images are written: a batch (B, C, H, W), a list of such, or slots of unequal sizes."""
StageOutput = tuple[Slots, Array | None, NDArray[np.float32] | None, Array | None, Array | None]
"""The slots; a table of the new value of each uint8 value, or None to keep the values; coefficients
that compute the same values as the table, or None; and the windows to erase and the value to erase
them with, or None. Values of float32 have no table, but may have coefficients.
"""
CreateStage = Callable[[StageOutput | None], Stage]
"""Returns the stage of a geometry. Without an output, the stage passes an image on."""
_MAX_CHANNELS = 4
_CHANNELS = {"rgb": 3, "gray": 1}
_extension = find_extension()
_jpeg, _png = find_extension("_jpeg"), find_extension("_png")


def can_run_stages(dtype: str, channels: int | None) -> bool:
    """Return whether stages run on images of a dtype and a number of channels."""
    return dtype in STAGE_DTYPES and channels in range(1, _MAX_CHANNELS + 1)


def is_image(op: ops.Op) -> bool:
    """Return whether stages run on the images of an operation."""
    return can_run_stages(op.spec.dtype, op.spec.channels)


def can_make(sizes: NDArray[np.int64]) -> bool:
    """Return whether the extension makes images of these [height, width], (B, 2)."""
    largest = np.maximum.reduce(sizes, None, initial=0)  # sizes.max() is a function of Python
    return bool(largest <= _extension.MAX_SIDE)


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
        if dtype != "uint8" or decode.sizes is None:
            return None
        channels, stages = _CHANNELS[mode], []
        if _png is not None:  # the cheaper to find that the file is of another format
            stages.append(Stage(_png.decode_stage(decode.sizes, channels)))
        if _jpeg is not None:
            stages.append(Stage(_jpeg.decode_stage(decode.sizes, decode.windows, channels)))
        if len(stages) < 2:
            return stages[0] if stages else None
        return Stage(_extension.first_stage(tuple(stages)))

    return Kernel("decode", lambda file, row: kernels.run_decode(decode, file, row), stage)


def _bind_crop(match: Match) -> Kernel:
    crop = match[ops.CropOp]

    def stage() -> Stage | None:
        windows = crop.windows
        if crop.fill is None:
            return Stage(_extension.crop_stage(windows))
        fill = as_pixel(crop.fill, crop.spec)
        return None if fill is None else Stage(_extension.window_stage(windows, fill, None, None))

    return Kernel("crop", lambda pixels, row: kernels.run_crop(crop, pixels, row), stage)


def as_pixel(fill: ops.Fill, spec: Spec) -> bytes | None:
    """Return the bytes of a pixel; None if stages do not run on images of this spec."""
    if spec.channels is None or not can_run_stages(spec.dtype, spec.channels):
        return None
    return np.full(spec.channels, fill).astype(spec.dtype).tobytes()


def _bind_transpose(match: Match) -> Kernel | None:
    spec = match[ops.TransposeOp].spec
    if not can_run_stages(spec.dtype, spec.channels):
        return None
    return stage_kernel("kernels.transpose", lambda: Stage(_extension.transpose_stage()))


def _bind_erase(match: Match) -> Kernel | None:
    erase = match[ops.EraseOp]
    value = as_pixel(erase.value, erase.spec)
    if value is None:
        return None
    if erase.seeds is not None:
        return stage_kernel("kernels.erase", lambda: create_noise_stage(erase, None))
    return stage_kernel(
        "kernels.erase", lambda: Stage(_extension.erase_stage(erase.windows, value))
    )


def create_noise_stage(
    erase: ops.EraseOp, output: tuple[Slots, Array | None, None] | None
) -> Stage:
    """Return the stage of an EraseOp with seeds.

    Args:
        erase: The operation.
        output: Where another stage has written the images: the slots, and the table of that
            stage. None to pass an image of float32 on.
    """
    seeds = np.ascontiguousarray(erase.seeds, np.int64)
    return Stage(_extension.noise_window_stage(erase.windows, seeds, output))


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
    return [
        Rule((ops.DecodeOp,), _bind_decode),
        Rule((ops.CropOp,), _bind_crop),
        Rule((ops.TransposeOp,), _bind_transpose),
        Rule((ops.EraseOp,), _bind_erase),
        Rule((SwitchOp,), _bind_switch),
        Rule((BlendOp,), _bind_blend),
    ]
