"""The primitives for which DALI runs torch on a CPU: `call_torch`, and `remap`.

DALI calls torch in a thread of its own, for one image after another, and holds Python's lock where
torch does not release it. So it takes the time of one core, whatever `threads` is. On a GPU DALI
has an operator for `remap`, and none for `call_torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn
from nvidia.dali.data_node import DataNode

from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.subgraph import Array, Make

if TYPE_CHECKING:
    from torch import Tensor


def call_torch(
    pixels: DataNode, nodes: Sequence[DataNode], function: Callable[..., Tensor]
) -> DataNode:
    """Return the node of what `function` makes of each image.

    Args:
        pixels: A DataNode of layout HWC, on the CPU.
        nodes: DataNodes of further arguments, on the CPU.
        function: Called with the image, a tensor (C, H, W), and a NumPy array for each argument.
            They are DALI's memory, which it may reuse after the call. Returns a tensor (C, H, W).
    """

    def run(image: Array, *values: Array) -> Array:
        import torch

        output = function(torch.from_numpy(image).permute(2, 0, 1), *values)
        return np.array(output.permute(1, 2, 0).numpy(), order="C")

    return fn.python_function(
        pixels, *nodes, function=run, num_outputs=1, output_layouts=["HWC"], device="cpu"
    )


Made = tuple[Make, tuple[Array, ...]]


def python_function(
    displacement: NDArray[np.float32], reach: tuple[int, int], interpolation: str, fill: ops.Fill
) -> Made:
    """Call torchvision's functional.elastic on each image."""

    def move(image: Tensor, moves: NDArray[np.float32]) -> Tensor:
        import torch
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        mode = InterpolationMode(interpolation)
        output: Tensor = F.elastic(image, torch.from_numpy(moves)[None], mode, list(fill))
        return output

    return lambda pixels, moves: call_torch(pixels, [moves], move), (displacement,)


def remap(
    displacement: NDArray[np.float32], reach: tuple[int, int], interpolation: str, fill: ops.Fill
) -> Made:
    """Run DALI's operator on a GPU.

    It leaves pixels alone that come from outside the image. So the image gets a border of `fill`
    that no move leaves, which is cut off afterwards. A pixel that comes from half-way over the
    image's edge is a mean of image and `fill`; torchvision makes it darker.
    """
    count, height, width, _ = displacement.shape
    top, left = reach
    shape = (height + 2 * top, width + 2 * left)
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    inner = (slice(None), slice(top, top + height), slice(left, left + width))
    x, y = (np.zeros((count, *shape), np.float32) for _ in range(2))
    x[inner] = displacement[..., 0] * np.float32(width / 2.0) + columns + np.float32(left)
    y[inner] = displacement[..., 1] * np.float32(height / 2.0) + rows[:, None] + np.float32(top)

    def make(pixels: DataNode, x: DataNode, y: DataNode) -> DataNode:
        padded = ops.cut(pixels, [-top, -left], list(shape), fill)
        moved = ops.remap(padded, x.gpu(), y.gpu(), interpolation)
        return ops.cut(moved, [top, left], [height, width], None)

    return make, (x, y)


REMAP: dict[str, Callable[..., Made]] = {"cpu": python_function, "gpu": remap}
"""The function for each device, with the name of the operator that it uses."""
