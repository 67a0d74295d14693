"""The primitives for which DALI runs torch on a CPU: `call_torch`, and `remap`.

DALI calls torch in a single thread, for one image after another. It holds the GIL unless torch
releases it. So these primitives use one core, whatever `threads` is. On a GPU, DALI has an operator
for `remap`, and none for `call_torch`.
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
    """Return the DataNode of the images that `function` returns.

    Args:
        pixels: A DataNode of layout HWC, on the CPU.
        nodes: DataNodes of further arguments, on the CPU.
        function: Called with the image, a tensor (C, H, W), and a NumPy array for each argument.
            These use DALI's memory, which DALI may reuse after the call. Returns a tensor (C, H,
            W).
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
    """Return a function that adds torchvision's elastic to the graph, and the arrays to feed to it.

    The function takes the pixels, and one DataNode for each array.
    """

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
    """Return a function that adds DALI's remap for GPUs to the graph, and the arrays to feed to it.

    DALI does not fill pixels that come from outside the image. So the function adds a border of
    `fill` before the remap, and cuts it off afterwards. The border has the size `reach`, the
    longest move. A pixel from half-way over the image's edge is a mean of image and `fill`; in
    torchvision it is darker.
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
"""The function for each device. The function has the name of the DALI operator that it uses."""
