"""What a worker answers: a batch as NumPy arrays, which Ray's object store keeps without a copy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as a contiguous array.

    Attributes:
        array: The array, with its axes in the order of memory.
        axes: Where each axis of the tensor is in `array`.
        dtype: The torch dtype, if NumPy has no such dtype; else None.
    """

    array: NDArray[Any]
    axes: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True)
class BatchAnswer:
    """The batch of a plan, or why there is none.

    Attributes:
        fields: The fields of the pipeline, by name. Empty if all samples were skipped. The trainer
            knows the ids, the labels and the other values of the index.
        kept: Positions in the plan's ids of the samples that the batch has; None: all.
        skipped: Why each other sample was skipped, by its row in the index.
        error: Why there is no batch, or None.
    """

    fields: dict[str, PackedTensor] = field(default_factory=dict)
    kept: NDArray[np.int64] | None = None
    skipped: dict[int, str] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def nbytes(self) -> int:
        """The size of the batch."""
        return sum(packed.array.nbytes for packed in self.fields.values())


def pack(tensor: torch.Tensor) -> PackedTensor:
    """Return a tensor as an array over the same memory.

    Ray stores contiguous arrays without pickling them. So an array whose strides are permuted, such
    as images in channels_last, is sent with its axes in the order of memory.
    """
    dtype = None
    if tensor.dtype == torch.bfloat16:
        dtype, tensor = "bfloat16", tensor.view(torch.int16)
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    ordered = tensor.permute(order) if tensor.dim() else tensor
    if not ordered.is_contiguous():
        order, ordered = list(range(tensor.dim())), tensor.contiguous()
    axes = tuple(order.index(axis) for axis in range(tensor.dim()))
    return PackedTensor(ordered.numpy(), axes, dtype)


def unpack(packed: PackedTensor) -> torch.Tensor:
    """Return the tensor over the memory of an array.

    An array from the object store is read-only, because other processes may map the same object.
    No other process reads this one: each answer is made for one trainer. So the tensor may be
    written in place, as those of other engines. The memory belongs to the object store until the
    last tensor over it dies.
    """
    array = packed.array
    tensor = torch.from_numpy(array if array.flags.writeable else _as_writable(array))
    tensor = tensor.permute(packed.axes) if packed.axes else tensor
    return tensor if packed.dtype is None else tensor.view(getattr(torch, packed.dtype))


def _as_writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return a writable array over the memory of a read-only one, which it keeps alive."""
    if not array.nbytes:
        return array.copy()
    memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory._owner = array  # type: ignore[attr-defined]
    block: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)
    return block.view(array.dtype).reshape(array.shape)
