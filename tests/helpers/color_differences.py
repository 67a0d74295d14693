"""What colour steps make of photographs, by DALI and by torchvision."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpupipe.pipeline.step_registry import STEPS
from helpers.reference import Difference, differences

FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
EXACT = 2e-6
"""Floats as they are rounded."""


def most(root: Path, name: str, dtype: str = "uint8", gray: bool = False, **step: Any) -> float:
    """The largest difference in levels, or in floats from 0 to 1."""
    return max(d.most for d in compared(root, name, dtype, gray, **step))


def compared(
    root: Path, name: str, dtype: str = "uint8", gray: bool = False, **step: Any
) -> list[Difference]:
    before = [] if dtype == "uint8" else [FLOATS]
    decode = {"mode": "gray"} if gray else None
    return differences(as_gray(root) if gray else root, *before, {name: step}, decode=decode)


def as_gray(root: Path) -> Path:
    """The images under `root` in gray files, which all engines decode to the bit."""
    gray = root.with_name(f"{root.name}-gray")
    for file in sorted(root.glob("*/*.png")):
        target = gray / file.relative_to(root)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.open(file).convert("L").save(target)
    return gray


def drawn(name: str, count: int = 20_000, **step: Any) -> dict[str, NDArray[Any]]:
    """What a step draws for so many samples."""
    checked = STEPS.find(name).model_validate(step)
    return checked.sample(np.random.default_rng(0).random((count, checked.num_uniforms)))


def is_share(flags: NDArray[Any], p: float) -> bool:
    """Whether `p` of them are 1, to 5 standard deviations."""
    return abs(float(flags.mean()) - p) <= 5 * np.sqrt(max(p * (1 - p), 1e-12) / len(flags))


def is_uniform(numbers: NDArray[Any], low: float, high: float) -> bool:
    """Whether numbers fill a range evenly: chi-square over ten bins, at one in a thousand."""
    counts, _ = np.histogram(numbers, 10, (low, high))
    inside = bool(((numbers >= low) & (numbers <= high)).all())
    expected = len(numbers) / 10
    return inside and float(((counts - expected) ** 2 / expected).sum()) < 27.9
