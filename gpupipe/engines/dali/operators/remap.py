"""The primitive `remap`: DALI has an operator for it on a GPU, and torchvision does it on a CPU.

Each function takes the arguments of the primitive. It returns `make` and the arrays that the graph
is fed for it: `make(pixels, *nodes)` returns the new pixels. Pixels have the layout HWC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.torch_call import call_torch

Made = tuple[Callable[..., Any], tuple[NDArray[Any], ...]]


def python_function(
    displacement: NDArray[np.float32], reach: tuple[int, int], interpolation: str, fill: ops.Fill
) -> Made:
    """Call torchvision's functional.elastic on each image."""

    def move(image: Any, moves: NDArray[np.float32]) -> Any:
        import torch
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        mode = InterpolationMode(interpolation)
        return F.elastic(image, torch.from_numpy(moves)[None], mode, list(fill))

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

    def make(pixels: Any, x: Any, y: Any) -> Any:
        padded = ops.cut(pixels, [-top, -left], list(shape), fill)
        moved = ops.remap(padded, x.gpu(), y.gpu(), interpolation)
        return ops.cut(moved, [top, left], [height, width], None)

    return make, (x, y)


REMAP: dict[str, Callable[..., Made]] = {"cpu": python_function, "gpu": remap}
"""The function for each device, with the name of the operator that it uses."""
