"""The two forms of an image between kernels, which share memory.

A NumPy array (H, W, C), as OpenCV takes it; or a tensor (C, H, W), as torch takes it. Only tensors
have bfloat16. Arrays that are no images, and the bytes of files, are always tensors.
"""

from __future__ import annotations

import threading
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.integer | np.floating]  # type: ignore[explicit-any]  # of NumPy's own
"""An array of numbers."""
Pixels = Array | torch.Tensor
_ALIGNMENT = 64


class Scratch(threading.local):
    """Memory of a thread, which is used again for each sample.

    All arrays of one sample are apart. New memory for each of them would cost more time than many
    kernels do, since the system clears each page at its first use.
    """

    def __init__(self) -> None:
        self._memory = np.empty(1 << 20, np.uint8)
        self._used = 0

    def begin_sample(self) -> None:
        """Use all memory again: no array of the last sample is needed any more."""
        self._used = 0

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return an array of uint8 of any content, valid until the next `begin_sample`."""
        size = prod(shape)
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if begin + size > len(self._memory):
            # Arrays that were taken before keep the old memory alive.
            self._memory, begin = np.empty(2 * (begin + size), np.uint8), 0
        self._used = begin + size
        return self._memory[begin : begin + size].reshape(shape)


scratch = Scratch()


def as_tensor(pixels: Pixels) -> torch.Tensor:
    """Return pixels as a tensor (C, H, W)."""
    if isinstance(pixels, torch.Tensor):
        return pixels
    return torch.from_numpy(pixels).permute(2, 0, 1)


def as_array(pixels: Pixels) -> Array:
    """Return pixels as an array (H, W, C), of any strides. bfloat16 has no such form."""
    if isinstance(pixels, torch.Tensor):
        return pixels.permute(1, 2, 0).numpy()
    return pixels


def as_packed(pixels: Pixels) -> Array:
    """Return pixels as an array (H, W, C) without gaps; copies them if they have gaps."""
    array = as_array(pixels)
    if array.flags.c_contiguous or array.dtype != np.uint8:
        return np.ascontiguousarray(array)
    packed = scratch.take(array.shape)
    packed[...] = array
    return packed


def view_as_array(tensor: torch.Tensor) -> Array:
    """Return a view; NumPy has no bfloat16."""
    bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    array: Array = bits.numpy()
    return array


def in_indices(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return maps of points, (B, 2, 3) or (B, 3, 3), as maps of the indices of pixels.

    The centre of pixel n is n + 0.5.
    """
    shifted = matrices.copy()
    shifted[:, :, 2] += 0.5 * (matrices[:, :, 0] + matrices[:, :, 1])
    last = shifted[:, 2:] if shifted.shape[1] == 3 else np.array([[[0.0, 0.0, 1.0]]])
    shifted[:, :2] -= 0.5 * last
    return shifted


def with_channels(array: Array) -> Array:
    """Return an array (H, W, C): OpenCV drops the axis of one channel."""
    return array[:, :, None] if array.ndim == 2 else array
