"""Memory between pages that nobody may touch: a read or write outside ends the process."""

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PAGE = mmap.PAGESIZE
_FORBIDDEN = 0


class FencedMemory:
    """Room for `size` bytes, with a page before and a page after it that cannot be accessed.

    AddressSanitizer sees what the extension itself does, and not what its libraries do.
    """

    def __init__(self, size: int) -> None:
        self._room = -(-size // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, self._room + 2 * _PAGE)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        libc: Any = ctypes.CDLL(None, use_errno=True)
        for page in (0, self._room + _PAGE):
            address = ctypes.c_void_p(self._bytes.ctypes.data + page)
            if libc.mprotect(address, ctypes.c_size_t(_PAGE), _FORBIDDEN) != 0:
                raise OSError(ctypes.get_errno(), "mprotect failed")

    def take(self, shape: tuple[int, ...], is_last: bool) -> NDArray[np.uint8]:
        """Return an array that ends at the page after the room, or begins at its first byte."""
        size = int(np.prod(shape))
        begin = _PAGE + (self._room - size if is_last else 0)
        return self._bytes[begin : begin + size].reshape(shape)
