"""Runs torch on single images inside DALI's CPU graph, for what DALI has no operator for.

DALI calls the function in a thread of its own, for one image after another, and holds Python's lock
where torch does not release it. So it takes the time of one core, whatever `threads` is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn


def call_torch(pixels: Any, nodes: Sequence[Any], function: Callable[..., Any]) -> Any:
    """Return the node of what `function` makes of each image.

    Args:
        pixels: A DataNode of layout HWC, on the CPU.
        nodes: DataNodes of further arguments, on the CPU.
        function: Called with the image, a tensor (C, H, W), and a NumPy array for each argument.
            They are DALI's memory, which it may reuse after the call. Returns a tensor (C, H, W).
    """

    def run(image: NDArray[Any], *values: NDArray[Any]) -> NDArray[Any]:
        import torch

        made = function(torch.from_numpy(image).permute(2, 0, 1), *values)
        return np.array(made.permute(1, 2, 0).numpy(), order="C")

    return fn.python_function(
        pixels, *nodes, function=run, num_outputs=1, output_layouts=["HWC"], device="cpu"
    )
