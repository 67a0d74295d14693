"""Encodes pixels as PNM files, which every decoder reads without computing anything."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_pnm(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Encode uint8 or uint16 pixels, (height, width, 1 or 3), as a binary PGM or PPM file."""
    height, width, channels = pixels.shape
    kind, highest = 6 if channels == 3 else 5, np.iinfo(pixels.dtype).max
    stored = pixels if highest == 255 else pixels.byteswap() if np.little_endian else pixels
    header = np.frombuffer(b"P%d\n%d %d\n%d\n" % (kind, width, height, highest), np.uint8)
    return np.concatenate([header, stored.reshape(-1).view(np.uint8)])
