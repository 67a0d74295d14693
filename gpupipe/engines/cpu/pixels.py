"""The pixels on which kernels work, as arrays and as tensors.

Kernels pass an image on as a NumPy array (H, W, C), as in OpenCV, or as a tensor (C, H, W), as in
torch. Conversions share memory, unless an array is read-only, such as a mapped file. Only tensors
can be bfloat16. Arrays that are no images, and the bytes of files that no step decodes, are always
tensors.
"""

import threading
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.runtime.installation import has_opencv

Array = NDArray[np.integer | np.floating]  # type: ignore[explicit-any]  # of NumPy's own
"""An array of numbers."""
Pixels = Array | torch.Tensor
MAX_OPENCV_CHANNELS = 128
"""OpenCV 5 takes an array (H, W, C) of more channels as one channel of three axes. It splits such
an array wrongly without an error. OpenCV 4 takes up to 512 channels."""
_ALIGNMENT = 64


class Scratch(threading.local):
    """Memory of a thread that is reused for each sample.

    The arrays of one sample do not overlap. Allocating new memory for each array would take longer
    than many kernels, since the system clears each page at its first use.
    """

    def __init__(self) -> None:
        self._memory = np.empty(1 << 20, np.uint8)
        self._used = 0
        self._key: tuple[int, tuple[int, ...]] | None = None
        """How many bytes were in use before `_batch`, and its shape; None without one."""

    def begin_sample(self) -> None:
        """Invalidate all arrays that `take` returned; the next sample reuses their memory."""
        self._used = 0

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return an uninitialized array of uint8, valid until the next `begin_sample`."""
        size = prod(shape)
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if begin + size > len(self._memory):
            # Arrays that were taken before keep the old memory alive.
            self._memory, begin = np.empty(2 * (begin + size), np.uint8), 0
            self._key = None
        self._used = begin + size
        return self._memory[begin : begin + size].reshape(shape)

    def take_batch(self, shape: tuple[int, int, int]) -> tuple[NDArray[np.uint8], torch.Tensor]:
        """Return an array (H, W, C) as `take` does, and its memory as a tensor (1, C, H, W).

        Both are made once, where each sample takes the same shape after the same other arrays.
        """
        key, memory = (self._used, shape), self._memory
        if key != self._key:
            array = self.take(shape)
            self._batch = array, as_batch(array), self._used
            # In new memory the array begins at 0, where the next sample has its other arrays.
            self._key = key if self._memory is memory else None
        array, tensor, self._used = self._batch
        return array, tensor


scratch = Scratch()


def as_tensor(pixels: Pixels) -> torch.Tensor:
    """Return pixels as a tensor (C, H, W)."""
    if isinstance(pixels, torch.Tensor):
        return pixels
    # torch warns of memory that is read-only.
    array = pixels if pixels.flags.writeable else pixels.copy()
    return torch.from_numpy(array).permute(2, 0, 1)


def as_batch(array: Array) -> torch.Tensor:
    """Return an array (H, W, C) as a tensor (1, C, H, W), in fewer calls than `as_tensor`."""
    images = (array if array.flags.writeable else array.copy())[None]
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def as_array(pixels: Pixels) -> Array:
    """Return pixels as an array (H, W, C) of any strides. The pixels must not be bfloat16."""
    if isinstance(pixels, torch.Tensor):
        return pixels.permute(1, 2, 0).numpy()
    return pixels


def as_packed(pixels: Pixels) -> Array:
    """Return pixels as an aligned C-contiguous array (H, W, C), copied if needed."""
    array = as_array(pixels)
    if array.dtype != np.uint8:
        return np.require(array, requirements=["C", "A"])
    if array.flags.c_contiguous:
        return array
    packed = scratch.take(array.shape)
    is_planar = array.transpose(2, 0, 1).flags.c_contiguous
    if is_planar and 1 < array.shape[2] <= MAX_OPENCV_CHANNELS and has_opencv():
        import cv2

        return cv2.merge(list(array.transpose(2, 0, 1)), packed)  # 30 times as fast as NumPy
    packed[...] = array
    return packed


def view_as_array(tensor: torch.Tensor) -> Array:
    """Return a NumPy view of a tensor. A bfloat16 tensor is viewed as int16."""
    bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    array: Array = bits.numpy()
    return array


def with_channels(array: Array) -> Array:
    """Return an array (H, W, C), with the channel axis that OpenCV drops if C is 1."""
    return array[:, :, None] if array.ndim == 2 else array
