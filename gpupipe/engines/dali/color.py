"""torchvision's colour functions as DALI operators.

Each function takes the pixels (a DataNode of layout HWC), their dtype ("uint8", "float16" or
"float32"), the device ("cpu" or "gpu"), and one DataNode per value, a CPU tensor per sample. It
returns pixels of the same dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvidia.dali import fn, types

_ALL_BITS = types.Constant(255, types.UINT8)


def invert(pixels: Any, dtype: str, device: str) -> Any:
    """Return 255 - x, or 1 - x for floats."""
    return pixels ^ _ALL_BITS if dtype == "uint8" else 1.0 - pixels


def posterize(pixels: Any, dtype: str, device: str, bits: Any) -> Any:
    """Keep the highest `bits` bits of each uint8 value."""
    levels = fn.cast(255 - (255 >> bits), dtype=types.UINT8)
    return pixels & _on(levels, device)


def _on(value: Any, device: str) -> Any:
    return value.gpu() if device == "gpu" else value


FUNCTIONS: dict[str, Callable[..., Any]] = {"invert": invert, "posterize": posterize}
"""The functions by torchvision's name."""
