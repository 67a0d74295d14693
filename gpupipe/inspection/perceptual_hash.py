"""Hashes images by what they look like: 64 signs of the lowest frequencies of a gray tile.

The bits are those that phash of the package imagehash computes of the same tile (a test compares
them). That package hashes one image of Pillow a call, which takes a third of the time of decoding a
photograph; one transform over all tiles of a part takes less than a tenth of that.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.decoder import Pixels

TILE_SIDE = 32
_FREQUENCIES = 8


@cache
def load_opencv() -> Any:
    """Return OpenCV without threads of its own: the parts of a scan already use all cores."""
    import cv2

    cv2.setNumThreads(0)
    return cv2


def make_tile(pixels: Pixels) -> NDArray[np.uint8]:
    """Return an image (H, W, 1 or 3) in gray, as the mean over each of 32 x 32 areas, (32, 32)."""
    cv2 = load_opencv()
    gray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY) if pixels.shape[2] == 3 else pixels[..., 0]
    tile: NDArray[np.uint8] = cv2.resize(gray, (TILE_SIDE, TILE_SIDE), interpolation=cv2.INTER_AREA)
    return tile


def hash_tiles(tiles: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the perceptual hash of each tile, (N,): 1 where a frequency is above the median.

    Args:
        tiles: Images in gray, uint8 (N, 32, 32).
    """
    from scipy.fft import dct

    rows = dct(tiles.astype(np.float64), axis=1)[:, :_FREQUENCIES]
    lowest = dct(rows, axis=2)[:, :, :_FREQUENCIES].reshape(len(tiles), _FREQUENCIES**2)
    bits = lowest > np.median(lowest, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8")[:, 0].astype(np.uint64)
