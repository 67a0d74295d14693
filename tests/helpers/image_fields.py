"""Images, masks and arrays, and a pipeline for them."""

import io
from typing import Any

import numpy as np
from PIL import Image

COUNT, SIDE = 10, 32
STEPS: list[Any] = [
    "decode",
    {"decode": {"mode": "gray", "on": "mask"}},
    {"random_horizontal_flip": {"on": ["image", "mask"]}},
]


def mask(n: int) -> np.ndarray[Any, Any]:
    found = np.full((SIDE, SIDE), 100, np.uint8)
    found[: 10 + n, 20:] = 200
    return found


def png(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "png")
    return out.getvalue()


def depth(n: int) -> np.ndarray[Any, Any]:
    return np.arange(n, n + 24, dtype=np.float32).reshape(2, 3, 4)
