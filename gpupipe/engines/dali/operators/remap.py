"""DALI operators that move each pixel by a displacement that it is fed with, for elastic_transform.

On a CPU, DALI has no such operator: `python_function` calls torchvision, as call_torch says.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn
from nvidia.dali.data_node import DataNode

from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.image_functions import call_torch
from gpupipe.engines.dali.operators.ops import Argument
from gpupipe.engines.dali.operators.subgraph import Array, DeferredArrays, Make, Value

if TYPE_CHECKING:
    from torch import Tensor

Made = tuple[Make, tuple[Value, ...]]


def python_function(
    displacements: DeferredArrays,
    size: ops.Floats,
    reach: tuple[int, int],
    interpolation: str,
    fill: ops.Fill,
) -> Made:
    """Return operators that call torchvision's `elastic`, and their arguments.

    See `remap` for the parameters. `size` and `reach` are not needed here.
    """

    def move(image: "Tensor", moves: NDArray[np.float32]) -> "Tensor":
        import torch
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        mode = InterpolationMode(interpolation)
        output: Tensor = F.elastic(image, torch.from_numpy(moves)[None], mode, list(fill))
        return output

    return lambda pixels, moves: call_torch(pixels, [moves], move), (displacements,)


def remap(
    displacements: DeferredArrays,
    size: ops.Floats,
    reach: tuple[int, int],
    interpolation: str,
    fill: ops.Fill,
) -> Made:
    """Return the operators of DALI's remap for GPUs, and their arguments.

    DALI's remap cannot fill pixels that come from outside the image. So the operators first add a
    border of `fill` around the image, then remap, and then cut the border off.

    A pixel that is interpolated across the image's edge becomes the weighted mean of the image and
    `fill`. It is known that torchvision's pixel is darker there: torchvision multiplies the image's
    part by its weight twice.

    Args:
        displacements: float32 (H, W, 2) for each image, [x, y] in units of half its width and
            height.
        size: [height, width] of the images in pixels, (B, 2), or (2,) if all have one size.
        reach: The largest move along [y, x] in pixels, and so the width of the border.
        interpolation: "nearest" or "bilinear".
        fill: The value outside the image: one number, or one per channel.
    """
    mode, border = ops.find_interpolation(interpolation), np.array(reach)
    make_maps = cache(lambda: [_to_maps(moves, reach) for moves in displacements.make()])

    def make(
        pixels: DataNode, x: DataNode, y: DataNode, outer: Argument, inner: Argument
    ) -> DataNode:
        padded = ops.cut(pixels, (-border).tolist(), outer, fill)
        moved = fn.experimental.remap(padded, x.gpu(), y.gpu(), interp=mode, pixel_origin="center")
        return ops.cut(moved, border.tolist(), inner, None)

    x, y = (
        DeferredArrays(np.dtype(np.float32), 3, partial(_take_axis, make_maps, axis))
        for axis in (0, 1)
    )
    outer, inner = (ops.argument(sides, 1, np.int32) for sides in (size + 2 * border, size))
    return make, (x, y, outer, inner)


def _to_maps(moves: NDArray[np.float32], reach: tuple[int, int]) -> NDArray[np.float32]:
    """Return the [x, y] that each pixel of an image with a border comes from, (2, H, W)."""
    height, width, _ = moves.shape
    top, left = reach
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    maps = np.zeros((2, height + 2 * top, width + 2 * left), np.float32)
    x, y = maps[:, top : top + height, left : left + width]
    x[:] = moves[..., 0] * np.float32(width / 2.0) + columns + np.float32(left)
    y[:] = moves[..., 1] * np.float32(height / 2.0) + rows[:, None] + np.float32(top)
    return maps


def _take_axis(make_maps: Callable[[], list[Array]], axis: int) -> list[Array]:
    return [maps[axis] for maps in make_maps()]


REMAP: dict[str, Callable[..., Made]] = {"cpu": python_function, "gpu": remap}
"""The function for each device. Its `__name__` is the name of the DALI operator that it uses."""
