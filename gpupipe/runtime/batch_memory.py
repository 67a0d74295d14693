"""Memory of batches that is used again.

New memory for a large batch costs as much time as the work on the batch, because the system clears
each page at its first use. Freeing it takes milliseconds too, in which torch holds the GIL. So
BatchMemory keeps the blocks that no tensor refers to any more, and uses them for new batches.

A block is in use while any tensor over it lives. Views, slices and NumPy arrays share the tensor's
storage, also in other threads, and the storage refers to one NumPy array over the block. When that
array is freed, its block returns to the pool. So a batch that the user keeps is never overwritten.
A forked child has its own copy of the pool and of all blocks. Pickling copies the pixels.

Batches differ in size if samples differ, if a schedule changes their size, and at the end of an
epoch. So a batch may use a block of up to twice its size. If too many blocks are unused, the pool
drops the one that has been unused longest.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Block = NDArray[np.uint8]
_MAX_WASTE = 2
"""The maximum size of a batch's block, as a multiple of the batch's size."""


_LINE = 64
"""Bytes of a cache line."""


def new_block(size: int) -> Block:
    """Return new memory of `size` bytes, which begins with a cache line.

    NumPy's begins 16 bytes after one. The extension writes floats past the cache, in whole lines:
    rows that share a line with the next would take half as long again.
    """
    memory = np.empty(size + _LINE - 1, np.uint8)
    begin = -memory.ctypes.data % _LINE
    return memory[begin : begin + size]


def new_pinned_block(size: int) -> Block:
    """Return new page-locked memory of `size` bytes, which allows asynchronous copies to a GPU."""
    import torch

    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


class _Use(weakref.ref[NDArray[Any]]):
    """Refers to the array over a block in use. A weakref.finalize would cost more for each batch.

    Attributes:
        block: The block.
    """

    __slots__ = ("block",)
    block: Block


@cache
def _find_numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's dtype; int16 for bfloat16, which NumPy lacks."""
    import torch

    return np.dtype("int16" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch."))


class BatchMemory:
    """Allocates the memory of batches, from a pool of blocks that are used again.

    Args:
        spare: The maximum number of unused blocks in the pool.
        new: Returns a new block of the given number of bytes.
    """

    def __init__(self, spare: int, new: Callable[[int], Block] = new_block) -> None:
        self._spare, self._new = spare, new
        self._free: deque[Block] = deque()
        """The unused blocks. The one that has been unused longest comes first."""
        self._in_use: dict[int, _Use] = {}
        """The references to the arrays over all other blocks, by their ids."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor in memory that no other tensor uses."""
        return self.allocate_with_array(shape, dtype)[0]

    def allocate_with_array(
        self, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[torch.Tensor, NDArray[Any]]:
        """Return such a tensor, and its memory as an array; one of bfloat16 as int16.

        Views of the array do not keep the memory: use them only while the tensor lives.
        """
        import torch

        owner = self._allocate_array(shape, _find_numpy_dtype(dtype))
        tensor = torch.from_numpy(owner)
        return tensor if dtype != torch.bfloat16 else tensor.view(dtype), owner

    def _allocate_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        size = prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        block = self._take(size)
        owner: NDArray[Any] = np.ndarray(shape, dtype, block)
        use = _Use(owner, self._return)
        use.block = block
        self._in_use[id(use)] = use
        return owner

    def allocate_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an uninitialised tensor of the same shape, dtype and order of strides.

        A tensor on a GPU is allocated by torch, which keeps its memory itself.
        """
        import torch

        if tensor.device.type != "cpu":
            return torch.empty_like(tensor)
        if tensor.is_contiguous():
            return self.allocate(tuple(tensor.shape), tensor.dtype)
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
        packed = self.allocate(tuple(tensor.shape[axis] for axis in order), tensor.dtype)
        return packed.permute([order.index(axis) for axis in range(tensor.dim())])

    def count_free(self) -> int:
        """Return the number of unused blocks in the pool."""
        return len(self._free)

    def release(self) -> None:
        """Free all unused blocks; from now on, free each block as soon as no tensor uses it."""
        self._spare = 0
        self._free.clear()

    def _take(self, size: int) -> Block:
        """Return a block for `size` bytes: the smallest unused block that fits, or a new one.

        Of several blocks of that size, it returns the one that was in use last.
        """
        unused: list[Block] = []
        with suppress(IndexError):
            while not unused or len(unused[-1]) != size:  # no other block would be smaller
                unused.append(self._free.pop())
        fitting = [n for n, block in enumerate(unused) if size <= len(block) <= _MAX_WASTE * size]
        smallest = min(fitting, key=lambda n: len(unused[n]), default=None)
        block = self._new(size) if smallest is None else unused.pop(smallest)
        self._free.extend(reversed(unused))
        return block

    def _return(self, use: _Use) -> None:
        """Put a block into the pool, and drop the blocks beyond `spare`, the longest unused first.

        `use` calls this when the block's last tensor is freed: on any thread, even during another
        method of this class. So this method takes no lock.
        """
        del self._in_use[id(use)]
        self._free.append(use.block)
        try:  # no suppress(): at exit, this module has lost its names
            while len(self._free) > self._spare:
                self._free.popleft()
        except IndexError:
            pass
