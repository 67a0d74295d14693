"""Resizes of the extension, with a crop and a flip: see `compiled_geometry`, which has their rules.

    ops       ResizeOp, CropOp, FlipOp
    a batch   resize_stage(sizes, windows, flips, is_cubic, antialias, output) -> Stage

With the interpolation "nearest", a crop may leave the resized image, and may follow the flip: a
pixel of the result is one pixel of the source, whatever the order.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.compiled_kernels import (
    CreateStage,
    StageOutput,
    as_pixel,
    can_make,
    is_image,
)
from gpupipe.engines.cpu.patterns import Match
from gpupipe.engines.cpu.program import Stage
from gpupipe.runtime.installation import find_extension

_TORCH_HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
_extension = find_extension()


def find_resize(match: Match) -> CreateStage | None:
    """Return the CreateStage of a resize with an optional crop and flip after it.

    Return None if a stage cannot do the resize, if a crop is not inside the resized image, or if
    that has a side of more than 2**20 pixels. Without antialiasing, torchvision's bilinear resize
    of uint8 is in float32 on processors without AVX2.
    """
    resize, crop, flip = match[ops.ResizeOp], match.get(ops.CropOp), match.get(ops.FlipOp)
    if resize.interpolation == "nearest":
        return find_nearest(match)
    is_bicubic = resize.interpolation == "bicubic"
    is_exact = resize.antialias or _TORCH_HAS_AVX2 or resize.spec.dtype == "float32"
    if not is_bicubic and not (resize.interpolation == "bilinear" and is_exact):
        return None
    if not is_image(resize) or not can_make(resize.sizes):
        return None
    if crop is not None and not ops.are_inside(crop.windows, resize.sizes):
        return None

    windows = None if crop is None else crop.windows
    arguments = windows, None if flip is None else flip.flags, is_bicubic, resize.antialias
    return lambda output: Stage(_extension.resize_stage(resize.sizes, *arguments, output))


def find_nearest(match: Match) -> CreateStage | None:
    """Return the CreateStage of a resize to nearest pixels with a crop and a flip in any order.

    Return None if the interpolation is another, if stages cannot do the resize, or if a crop
    without a fill is not inside the resized image.
    """
    resize, crop, flip = match[ops.ResizeOp], match.get(ops.CropOp), match.get(ops.FlipOp)
    if resize.interpolation != "nearest" or not is_image(resize) or not can_make(resize.sizes):
        return None
    fill: bytes | None = b""
    if crop is not None and crop.fill is None and not ops.are_inside(crop.windows, resize.sizes):
        return None
    if crop is not None and crop.fill is not None:
        fill = as_pixel(crop.fill, crop.spec)
    if fill is None:
        return None
    flags, windows = None if flip is None else flip.flags, None
    if crop is not None:
        is_after = flip is not None and match.ops.index(crop) > match.ops.index(flip)
        windows = crop.windows
        if is_after and flags is not None:
            windows = _find_unflipped(crop.windows, flags, resize.sizes)

    def create(output: StageOutput | None) -> Stage:
        return Stage(_extension.nearest_stage(resize.sizes, windows, fill, flags, output))

    return create


def _find_unflipped(windows: ops.Rows, flags: NDArray[np.uint8], sizes: ops.Rows) -> ops.Rows:
    """Return the windows that show the same pixels before a flip, in the other order."""
    vertical_first = flags[:, ::-1]
    mirrored = sizes - windows[:, :2] - windows[:, 2:]
    corners = np.where(vertical_first, mirrored, windows[:, :2])
    return np.concatenate([corners, windows[:, 2:]], 1)
