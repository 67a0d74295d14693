"""What a worker answers: a batch as NumPy arrays, which Ray's object store keeps without a copy.

Ray writes objects to disk once a store is fuller than its spilling threshold, which costs more time
than any batch. So `choose_window` limits how many answers may wait, before any batch is made, such
that this never happens.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.base import Job
from gpupipe.errors import EngineError

_log = logging.getLogger("gpupipe")
USABLE_SHARE = 0.8
"""Ray's default of `object_spilling_threshold`."""
_MB = 1e6
_HELD = 2
"""Batches that the consumer holds: the current one and the one before it."""
_MIN_WINDOW = 2


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


def choose_window(
    wanted: int,
    is_explicit: bool,
    *,
    batch_bytes: int,
    finished: int,
    trainers: int,
    store_bytes: int,
) -> int:
    """Return how many tasks of a trainer may be out.

    Args:
        wanted: The number that keeps all workers busy, or `loader.hwm`.
        is_explicit: Whether the config has `loader.hwm`.
        batch_bytes: The size of a batch as workers send it.
        finished: Finished batches that wait for the consumer.
        trainers: How many trainers share the node.
        store_bytes: The size of the node's object store.

    Raises:
        EngineError: The object store is too small.
    """
    kept = finished + _HELD
    largest = int(USABLE_SHARE * store_bytes / trainers / batch_bytes) - kept
    if wanted <= largest:
        return wanted
    if is_explicit or largest < _MIN_WINDOW:
        count = ((wanted if is_explicit else _MIN_WINDOW) + kept) * trainers
        raise EngineError(
            f"Ray's object store on this node is too small: {count} batches of "
            f"{batch_bytes / _MB:.1f} MB need {count * batch_bytes / _MB:.0f} MB, and "
            f"{USABLE_SHARE:.0%} of {store_bytes / _MB:.0f} MB are usable before Ray writes to "
            "disk: lower loader.batch_size or loader.hwm, keep loader.ray.ship at uint8, or start "
            "Ray with a larger --object-store-memory"
        )
    _log.warning(
        "gpupipe: %d instead of %d batches are made ahead, since Ray's object store is %.0f MB "
        "and a batch %.1f MB",
        largest,
        wanted,
        store_bytes / _MB,
        batch_bytes / _MB,
    )
    return largest


def batch_bytes_of(job: Job) -> int | None:
    """Return the size of the largest batch of any epoch, from the specs of its fields.

    None if the specs leave a size open.
    """
    sizes = []
    for pipeline in job.pipeline.phases:
        sizes.append(0)
        for name in pipeline.outputs:
            spec = pipeline.output_spec_of(name)
            if spec.encoded or None in spec.shape:
                return None
            dtype = (job.loader.dtype if name in pipeline.main_outputs else None) or spec.dtype
            sizes[-1] += prod(n or 0 for n in spec.shape) * getattr(torch, dtype).itemsize
    return max(sizes) * job.loader.batch_size
