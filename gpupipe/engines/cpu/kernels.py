"""The kernels: functions that run calls of primitives on one sample.

`TABLE` says which function runs which group of primitives. Every primitive has one here that runs
torchvision, the reference. `opencv_kernels` and `compiled_kernels` put faster ones in front, and
fused groups: a later kernel takes over by a row of its own, with no change elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gpupipe.augment import color_ops
from gpupipe.engines.cpu.delivery import deliver
from gpupipe.engines.cpu.pixels import as_array, as_packed, as_tensor
from gpupipe.engines.cpu.program import Calls, Kernel, Table
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.spec_checks import describe_small_image
from gpupipe.pipeline.step import SampleIncompatible
from gpupipe.pipeline.tensors import cut, flip, in_float32
from gpupipe.runtime import plugins
from gpupipe.steps.normalize import Normalize
from gpupipe.steps.to_dtype import ToDtype

_ANTIALIASED = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}
"""What torch.nn.functional.interpolate calls, with a place for the result."""


def _run_decode(pixels: Any, calls: Calls, row: int) -> Any:
    image, options, out = pixels, calls[0].options, None
    if image.header.is_plain and options.dtype == "uint8":
        stored = image.header.height, image.header.width, 3 if options.mode == "rgb" else 1
        out = scratch.take(stored)
    return image.decode(options, calls[0].rows[row] if calls[0].rows else None, out)


def _run_torch(pixels: Any, calls: Calls, row: int) -> Any:
    entry, parameters = calls[0].options
    image = as_tensor(pixels)
    if plugins.is_foreign(type(entry.step)):
        image = image.clone()  # it may keep its input, but scratch memory is used again
    return entry.torch(image, {name: v[row] for name, v in parameters.items()})


def _run_check(pixels: Any, calls: Calls, row: int) -> Any:
    """Raise StepError if a step that gpupipe does not know made something else than it said."""
    entry: Entry = calls[0].options
    if differs := entry.output_spec.describe_mismatch(
        as_tensor(pixels), entry.output_spec.canonical_sizes
    ):
        what = f"its lower() made {differs}"
        raise plugins.step_wrong(entry.key, type(entry.step), entry.where, what)
    return pixels


def _run_crop(pixels: Any, calls: Calls, row: int) -> Any:
    return crop(pixels, calls[0].rows[row], calls[0].options)


def crop(pixels: Any, window: Sequence[int], fill: Any) -> Any:
    """Return a window [top, left, height, width]; outside the image is `fill`.

    Raises:
        SampleIncompatible: The window is not inside the image, and `fill` is None.
    """
    top, left, height, width = window
    if fill is not None:
        return cut(as_tensor(pixels), (top, left), (height, width), fill)
    array = as_array(pixels)
    room = array.shape[:2]
    if min(top, left) < 0 or top + height > room[0] or left + width > room[1]:
        if height > room[0] or width > room[1]:
            raise SampleIncompatible(describe_small_image(room, (height, width)))
        raise SampleIncompatible(
            f"the window of {height}x{width} pixels at {[top, left]} is not inside the image, "
            f"which has {room[0]}x{room[1]}"
        )
    return array[top : top + height, left : left + width]


def _run_pad(pixels: Any, calls: Calls, row: int) -> Any:
    top, left, bottom, right = calls[0].rows[row]
    border = ((top, bottom), (left, right), (0, 0))
    return np.pad(as_array(pixels), border, calls[0].options)


def _run_resize(pixels: Any, calls: Calls, row: int) -> Any:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    interpolation, antialias = calls[0].options
    mode = InterpolationMode(interpolation)
    return F.resize(as_tensor(pixels), calls[0].rows[row], mode, antialias=antialias)


def _is_antialiased_uint8(calls: Calls) -> bool:
    """Whether torch's kernel for uint8 in channels-last order does a resize."""
    interpolation, antialias = calls[-1].options
    return calls[-1].spec.dtype == "uint8" and antialias and interpolation != "nearest"


def _run_resize_uint8(pixels: Any, calls: Calls, row: int) -> Any:
    """Resize with the kernel that torchvision uses, on packed pixels: a third faster."""
    sides = calls[0].rows[row]
    array = as_packed(pixels)
    if list(array.shape[:2]) == sides:
        return pixels
    made = scratch.take((*sides, array.shape[2]))
    resize = _ANTIALIASED[calls[0].options[0]]
    resize(as_tensor(array)[None], sides, False, None, None, out=as_tensor(made)[None])
    return made


def _run_flip(pixels: Any, calls: Calls, row: int) -> Any:
    axes = [axis for axis, flag in zip((-1, -2), calls[0].rows[row], strict=True) if flag]
    return flip(as_tensor(pixels), axes) if axes else pixels


def _run_erase(pixels: Any, calls: Calls, row: int) -> Any:
    top, left, height, width = calls[0].rows[row]
    if not height or not width:
        return pixels
    erased = as_array(pixels).copy()
    erased[top : top + height, left : left + width] = calls[0].options
    return erased


def _run_add(pixels: Any, calls: Calls, row: int) -> Any:
    image, values = as_array(pixels), calls[0].rows[row]
    noisy = image + values
    if image.dtype == np.uint8:
        return np.clip(noisy, 0, 255, out=noisy).astype(np.uint8)
    noisy = np.clip(noisy, 0, 1, out=noisy) if calls[0].options else noisy
    return noisy.astype(image.dtype)


def _run_remap(pixels: Any, calls: Calls, row: int) -> Any:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    interpolation, fill = calls[0].options
    moves = torch.from_numpy(calls[0].rows[row])[None]
    return in_float32(
        as_tensor(pixels),
        lambda image: F.elastic(image, moves, InterpolationMode(interpolation), list(fill)),
    )


def _run_call_torch(pixels: Any, calls: Calls, row: int) -> Any:
    return calls[0].options(as_tensor(pixels))


def _run_color_matrix(pixels: Any, calls: Calls, row: int) -> Any:
    array = as_packed(pixels)
    made = array.astype(np.float32) @ np.asarray(calls[0].rows[row], np.float32).T
    if array.dtype == np.uint8:
        made = np.clip(made, 0, 255)  # astype truncates
    return made.astype(array.dtype)


def _run_to_dtype(pixels: Any, calls: Calls, row: int) -> Any:
    dtype, scale = calls[0].options
    return ToDtype(dtype=dtype, scale=scale).torch(as_tensor(pixels), {})


def _run_normalize(pixels: Any, calls: Calls, row: int) -> Any:
    mean, std = calls[0].options
    return Normalize(mean=mean, std=std).torch(as_tensor(pixels), {})


def _run_color(pixels: Any, calls: Calls, row: int) -> Any:
    op, values = calls[0].options, calls[0].rows[row]
    return in_float32(as_tensor(pixels), lambda image: color_ops.apply(op, image, values))


def _run_switch(pixels: Any, calls: Calls, row: int) -> Any:
    return calls[0].branches[calls[0].rows[row]].run(pixels, row)


def _run_blend(pixels: Any, calls: Calls, row: int) -> Any:
    weights = calls[0].rows[row]
    total = np.zeros(as_array(pixels).shape, np.float32)
    for branch, weight in zip(calls[0].branches, weights, strict=True):
        total += as_array(branch.run(pixels, row)) * np.float32(weight)
    return np.clip(total, 0, 255).astype(np.uint8)


def _run_deliver(pixels: Any, calls: Calls, row: int) -> Any:
    deliver(as_tensor(pixels), calls[0].options, row)


def _kernel(run: Callable[[Any, Calls, int], Any], op: str) -> list[Kernel]:
    return [Kernel(run, op)]


def _torchvision_kernel(run: Callable[[Any, Calls, int], Any], op: str) -> Kernel:
    return Kernel(run, op, needs_torchvision=True)


TABLE: Table = {
    ("decode",): _kernel(_run_decode, "decode"),
    ("crop",): _kernel(_run_crop, "crop"),
    ("pad",): _kernel(_run_pad, "numpy.pad"),
    ("resize",): [
        Kernel(_run_resize_uint8, "torch.interpolate", _is_antialiased_uint8),
        _torchvision_kernel(_run_resize, "torchvision.resize"),
    ],
    ("flip",): _kernel(_run_flip, "torch.flip"),
    ("erase",): _kernel(_run_erase, "numpy.copyto"),
    ("add",): _kernel(_run_add, "numpy.add"),
    ("remap",): [_torchvision_kernel(_run_remap, "torchvision.elastic")],
    ("call_torch",): [_torchvision_kernel(_run_call_torch, "call_torch")],
    ("color_matrix",): _kernel(_run_color_matrix, "numpy.matmul"),
    ("to_dtype",): [_torchvision_kernel(_run_to_dtype, "torchvision.to_dtype")],
    ("normalize",): _kernel(_run_normalize, "torch.normalize"),
    ("color",): [_torchvision_kernel(_run_color, "torchvision.color")],
    ("switch",): _kernel(_run_switch, "switch"),
    ("blend",): _kernel(_run_blend, "numpy.add"),
    ("torch",): [_torchvision_kernel(_run_torch, "torch")],
    ("check",): _kernel(_run_check, "check"),
    ("deliver",): _kernel(_run_deliver, "deliver"),
}
"""The kernels of each group of primitives, the preferred one first."""
