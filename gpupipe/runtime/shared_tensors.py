"""Tensors in memory that two processes share."""

import mmap
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_CAPACITY = 256 << 20
"""Bytes of a file at first: an image and an output. The system allocates pages that are used."""


class SharedTensors:
    """Tensors in an anonymous file that two processes map; each of them has such an object.

    Args:
        fd: The file, which grows with what is written.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.native = self._map = mmap.mmap(fd, 0)
        """The memory that native code writes, while `write` may map more of the file."""

    @classmethod
    def create(cls) -> "SharedTensors":
        """Return memory in a new file."""
        fd = os.memfd_create("gpupipe images")
        os.ftruncate(fd, _CAPACITY)
        return cls(fd)

    def write(self, tensor: "Tensor", begin: int = 0) -> dict[str, Any]:
        """Copy a tensor to an offset in bytes.

        Returns:
            Where it is, for `view`.
        """
        place = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "begin": begin,
            "end": begin + tensor.numel() * tensor.element_size(),
        }
        self.view(place).copy_(tensor)
        return place

    def view(self, place: dict[str, Any]) -> "Tensor":
        """Return the memory of a tensor; the next `write` changes it."""
        import torch

        dtype, shape = getattr(torch, place["dtype"]), place["shape"]
        if place["end"] == place["begin"]:
            return torch.empty(shape, dtype=dtype)
        if len(self._map) < place["end"]:
            pages = -(-place["end"] // mmap.PAGESIZE) * mmap.PAGESIZE
            if os.fstat(self.fd).st_size < pages:
                os.ftruncate(self.fd, pages)
            self._map = mmap.mmap(self.fd, pages)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        return whole[place["begin"] : place["end"]].view(dtype).view(shape)
