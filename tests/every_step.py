"""Every step, with parameters that lead to each operator it may use, on a small image of any
dtype.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cut_jpegs import pixels
from PIL import Image

from gpupipe.formats.npy import DTYPES

SIZE = (24, 32)
STEPS: dict[str, list[dict[str, Any]]] = {
    "resize": [{"size": [12, 10], "interpolation": i} for i in ("nearest", "bilinear", "bicubic")]
    + [{"size": 12, "antialias": False}],
    "center_crop": [{"size": 12}, {"size": 40}],
    "random_crop": [
        {"size": 12},
        {"size": 26, "padding": 4, "fill": 1},
        {"size": 26, "padding": 4, "padding_mode": "reflect"},
    ],
    "random_resized_crop": [{"size": 12}, {"size": 12, "interpolation": "nearest"}],
    "random_horizontal_flip": [{"p": 1}],
    "random_vertical_flip": [{"p": 1}],
    "random_affine": [{"degrees": 20}, {"degrees": 20, "interpolation": "bilinear", "fill": 1}],
    "random_rotation": [
        {"degrees": 20},
        {"degrees": 20, "interpolation": "bilinear", "expand": True},
    ],
    "pad": [
        {"padding": 2},
        *({"padding": 2, "padding_mode": m} for m in ("edge", "reflect", "symmetric")),
    ],
    "grayscale": [{}, {"num_output_channels": 3}],
    "normalize": [{"mean": 0.1, "std": 0.5}],
    "to_dtype": [{"dtype": dtype, "scale": scale} for dtype in DTYPES for scale in (False, True)],
}
CASES = [{name: parameters} for name, every in STEPS.items() for parameters in every]


def photograph(folder: Path) -> dict[str, Any]:
    """One image file without loss, as the YAML's `data`."""
    (folder / "one").mkdir()
    Image.fromarray(pixels(*SIZE)).save(folder / "one" / "1.png")
    return {"source": "folder", "root": str(folder)}


def of_image(dtype: str) -> list[Any]:
    """Steps that make an image file pixels of a dtype."""
    return ["decode", {"to_dtype": {"dtype": dtype}}]
