"""The reference kernels, one per operation: they call torchvision or do the same arithmetic.

`opencv_kernels` and `compiled_kernels` have faster kernels. Some of those run several operations.
"""

from typing import cast

import numpy as np
import torch

from gpupipe.augment import color_ops, noise
from gpupipe.augment.elastic import make_displacement
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.delivery import DeliverOp, find_delivery
from gpupipe.engines.cpu.patterns import Maybe
from gpupipe.engines.cpu.pixels import (
    Array,
    Pixels,
    as_array,
    as_batch,
    as_packed,
    as_tensor,
    scratch,
)
from gpupipe.engines.cpu.program import BlendOp, Content, Rule, SwitchOp, single
from gpupipe.pipeline.geometry import describe_small_image
from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.pipeline.tensors import cut, flip, in_float32
from gpupipe.runtime.failures import is_foreign, step_wrong
from gpupipe.steps.to_dtype import Normalize, ToDtype

_ANTIALIASED = {
    "bilinear": torch._C._nn._upsample_bilinear2d_aa,
    "bicubic": torch._C._nn._upsample_bicubic2d_aa,
}
"""The functions that torch.nn.functional.interpolate calls; these have an argument `out`."""
_CACHE_LINE, _MAX_CACHED = 64, 4 << 20
"""Bytes."""


def run_decode(op: ops.DecodeOp, content: Content, row: int) -> Pixels:
    """Decode an image file."""
    image = cast(EncodedImage, content)
    header, out = image.header, None
    if header.is_plain and op.options.dtype == "uint8":
        out = scratch.take((header.height, header.width, 3 if op.options.mode == "rgb" else 1))
    return image.decode(
        op.options, None if op.windows is None else ops.as_ints(op.windows, row), out
    )


def _run_torch(op: ops.TorchOp, pixels: Pixels, row: int) -> Pixels:
    image = as_tensor(pixels)
    if is_foreign(type(op.entry.step)):
        image = image.clone()  # the step may keep its input, but scratch memory is reused
    parameters = {name: values[row] for name, values in op.parameters.items()}
    result: torch.Tensor = op.entry.torch(image, parameters)
    return result


def _run_check(op: ops.CheckOp, pixels: Pixels, row: int) -> Pixels:
    """Raise StepError if the output of a step of another package does not match its spec."""
    entry = op.entry
    if differs := entry.output_spec.describe_mismatch(
        as_tensor(pixels), entry.output_spec.canonical_sizes
    ):
        mistake = f"its lower() made {differs}"
        raise step_wrong(entry.key, type(entry.step), entry.where, mistake)
    return pixels


def run_crop(op: ops.CropOp, content: Content, row: int) -> Pixels:
    """Cut out a window. Raise SampleIncompatibleError if it is outside and there is no fill."""
    pixels = cast(Pixels, content)
    window = top, left, height, width = ops.as_ints(op.windows, row)
    if op.fill is not None:
        return cut(as_tensor(pixels), (top, left), (height, width), op.fill)
    array = as_array(pixels)
    size = array.shape[:2]
    if not ops.is_inside(window, size):
        if height > size[0] or width > size[1]:
            raise SampleIncompatibleError(describe_small_image(size, (height, width)))
        raise SampleIncompatibleError(
            f"the window of {height}x{width} pixels at {[top, left]} is not inside the image, "
            f"which has {size[0]}x{size[1]}"
        )
    return array[top : top + height, left : left + width]


def _run_pad(op: ops.PadOp, pixels: Pixels, row: int) -> Pixels:
    top, left, bottom, right = ops.as_ints(op.borders, row)
    return np.pad(as_array(pixels), ((top, bottom), (left, right), (0, 0)), op.mode)


def _run_resize(op: ops.ResizeOp, pixels: Pixels, row: int) -> Pixels:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    mode = InterpolationMode(op.interpolation)
    sizes = ops.as_ints(op.sizes, row)
    resized: torch.Tensor = F.resize(as_tensor(pixels), sizes, mode, antialias=op.antialias)
    return resized


def is_antialiased_uint8(op: ops.ResizeOp) -> bool:
    """Return whether `run_resize_uint8` can do a resize."""
    return op.spec.dtype == "uint8" and op.antialias and op.interpolation != "nearest"


def run_resize_uint8(op: ops.ResizeOp, pixels: Pixels, row: int) -> Pixels:
    """Resize by calling torchvision's kernel directly: a third faster than its function.

    The kernel reads four rows at a time, which makes it wait for memory. So the image is read in
    order before, if it may not be in the CPU's cache: 512x512x3 bytes then take a tenth less time.
    """
    height, width = size = ops.as_ints(op.sizes, row)
    image = as_array(pixels)
    if image.shape[:2] == (height, width):
        return pixels
    array = as_packed(image)
    if array is image and array.nbytes <= _MAX_CACHED:
        array.reshape(-1)[::_CACHE_LINE].max()
    resized, out = scratch.take_batch((height, width, array.shape[2]))
    source = as_batch(array)
    _ANTIALIASED[op.interpolation](source, size, False, None, None, out=out)  # type: ignore[call-arg]
    return resized


def _run_flip(op: ops.FlipOp, pixels: Pixels, row: int) -> Pixels:
    axes = [axis for axis, flag in zip((-1, -2), op.flags[row], strict=True) if flag]
    return flip(as_tensor(pixels), axes) if axes else pixels


def _run_transpose(op: ops.TransposeOp, pixels: Pixels, row: int) -> Pixels:
    return np.ascontiguousarray(as_array(pixels).swapaxes(0, 1))


def _run_erase(op: ops.EraseOp, pixels: Pixels, row: int) -> Pixels:
    top, left, height, width = ops.as_ints(op.windows, row)
    if not height or not width:
        return pixels
    erased = as_array(pixels).copy()
    window = erased[top : top + height, left : left + width]
    window[...] = op.value if op.seeds is None else noise.normal_field(op.seeds[row], window.shape)
    return erased


def _run_add_noise(op: ops.AddNoiseOp, pixels: Pixels, row: int) -> Pixels:
    image = as_array(pixels)
    dtype = image.dtype.name
    total: Array = image + noise.make_noise(op.seeds[row], image.shape, dtype, op.mean, op.sigma)
    if image.dtype == np.uint8:
        return np.clip(total, 0, 255, out=total).astype(np.uint8)
    return (np.clip(total, 0, 1, out=total) if op.clip else total).astype(image.dtype)


def _run_elastic(op: ops.ElasticOp, pixels: Pixels, row: int) -> Pixels:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    image = as_tensor(pixels)
    height, width = image.shape[-2:]
    displacement = make_displacement(op.seeds[row], (height, width), op.displacements)
    moves, mode = torch.from_numpy(displacement)[None], InterpolationMode(op.interpolation)
    return in_float32(image, lambda pixels: F.elastic(pixels, moves, mode, list(op.fill)))


def run_call_torch(op: ops.CallTorchOp, pixels: Pixels, row: int) -> Pixels:
    """Call a function on a tensor, and on the sample's part of the values."""
    return op.function(as_tensor(pixels), *(values[row] for values in op.values))


def _run_color_matrix(op: ops.ColorMatrixOp, pixels: Pixels, row: int) -> Pixels:
    array = as_packed(pixels)
    mixed: Array = array.astype(np.float32) @ np.asarray(op.matrices[row], np.float32).T
    if array.dtype == np.uint8:
        mixed = np.clip(mixed, 0, 255)  # astype truncates
    return mixed.astype(array.dtype)


def _run_to_dtype(op: ops.ToDtypeOp, pixels: Pixels, row: int) -> Pixels:
    converted: torch.Tensor = ToDtype(dtype=op.dtype, scale=op.scale).torch(as_tensor(pixels), {})
    return converted


def _run_normalize(op: ops.NormalizeOp, pixels: Pixels, row: int) -> Pixels:
    normalized: torch.Tensor = Normalize(mean=op.mean, std=op.std).torch(as_tensor(pixels), {})
    return normalized


def _run_color(op: ops.ColorOp, pixels: Pixels, row: int) -> Pixels:
    values = op.values_of(row)
    return in_float32(as_tensor(pixels), lambda image: color_ops.apply(op.name, image, values))


def run_switch(op: SwitchOp, content: Content, row: int) -> Pixels:
    """Run one branch."""
    return op.branches[int(op.index[row])].run(content, row)


def run_blend(op: BlendOp, content: Content, row: int) -> Pixels:
    """Sum the results of all branches, each times its weight."""
    pixels = cast(Pixels, content)
    total = np.zeros(as_array(pixels).shape, np.float32)
    for branch, weight in zip(op.branches, op.weights[row], strict=True):
        total += as_array(branch.run(pixels, row)) * np.float32(weight)
    return np.clip(total, 0, 255).astype(np.uint8)


RULES = [
    single(ops.DecodeOp, "decode", run_decode),
    single(ops.CropOp, "crop", run_crop),
    single(ops.PadOp, "numpy.pad", _run_pad),
    single(ops.ResizeOp, "torch.interpolate", run_resize_uint8, is_antialiased_uint8),
    single(ops.ResizeOp, "torchvision.resize", _run_resize, needs_torchvision=True),
    single(ops.FlipOp, "torch.flip", _run_flip),
    single(ops.TransposeOp, "numpy.swapaxes", _run_transpose),
    Rule((Maybe(ops.EraseOp), DeliverOp), find_delivery),
    single(ops.EraseOp, "numpy.copyto", _run_erase),
    single(ops.AddNoiseOp, "numpy.add", _run_add_noise),
    single(ops.ElasticOp, "torchvision.elastic", _run_elastic, needs_torchvision=True),
    single(ops.CallTorchOp, "call_torch", run_call_torch, needs_torchvision=True),
    single(ops.ColorMatrixOp, "numpy.matmul", _run_color_matrix),
    single(ops.ToDtypeOp, "torchvision.to_dtype", _run_to_dtype, needs_torchvision=True),
    single(ops.NormalizeOp, "torch.normalize", _run_normalize),
    single(ops.ColorOp, "torchvision.color", _run_color, needs_torchvision=True),
    single(SwitchOp, "switch", run_switch),
    single(BlendOp, "numpy.add", run_blend),
    single(ops.TorchOp, "torch", _run_torch, needs_torchvision=True),
    single(ops.CheckOp, "check", _run_check),
]
