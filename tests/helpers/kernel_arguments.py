"""Arguments of the functions of gpupipe._kernels."""

from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.last_steps import make_coefficients, make_table

NUMBERS = (
    ("to_dtype", ("float32", True)),
    ("normalize", ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
)
TORCH_BITS = {"bfloat16": torch.int16}


def picture(height: int, width: int, gap: int = 0, seed: int = 0) -> NDArray[np.uint8]:
    """An image whose memory ends with its last pixel; `gap` bytes lie between its rows."""
    stride = 3 * width + gap
    data = np.random.default_rng(seed).integers(0, 256, stride * height - gap, np.uint8)
    return np.lib.stride_tricks.as_strided(data, (height, width, 3), (stride, 3, 1))


def target(height: int, width: int, dtype: str, is_packed: bool) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if is_packed:
        return torch.zeros(3, height, width, dtype=kind)
    return torch.zeros(height, width, 3, dtype=kind).permute(2, 0, 1)


def bits(tensor: torch.Tensor) -> Any:
    return tensor.view(TORCH_BITS.get(str(tensor.dtype)[6:], tensor.dtype)).numpy()


def tables(dtype: str, numbers: Any = NUMBERS) -> tuple[Any, Any]:
    if dtype == "uint8":
        return None, None
    return bits(make_table(numbers, dtype, 3)[:, 0]), make_coefficients(numbers, dtype, 3)


def run(stage: Any, image: Any) -> None:
    """Run a stage of gpupipe._kernels, for a batch of one sample, on an image."""
    assert import_module("gpupipe._kernels").run_program(stage, [0], [image]) == []
