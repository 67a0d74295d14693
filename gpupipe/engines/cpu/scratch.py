"""Memory of a thread for what one sample needs between its kernels."""

from __future__ import annotations

import threading
from math import prod

import numpy as np
from numpy.typing import NDArray

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
