"""A worker's answer: a batch as NumPy arrays, which Ray's object store holds without a copy.

If the store is fuller than its spilling threshold, Ray writes objects to disk, which takes longer
than making a batch. To prevent that, `choose_window` limits the number of waiting answers before
any batch is made.
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
"""The share of the object store that Ray fills before it writes to disk.

It is Ray's default of `object_spilling_threshold`.
"""
_MB = 1e6
_HELD = 2
"""Batches that the consumer holds: the current one and the one before it."""
_MIN_WINDOW = 2


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as a contiguous array.

    Attributes:
        array: The array, with its axes in the order of memory.
        axes: The axis of `array` that holds each axis of the tensor, for `torch.Tensor.permute`.
        dtype: Name of the tensor's dtype if NumPy has no such dtype, such as "bfloat16"; else None.
    """

    array: NDArray[Any]
    axes: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True)
class BatchAnswer:
    """A worker's answer to a plan: the batch, or the error.

    Attributes:
        fields: The output fields of the pipeline, by name. Empty if all samples were skipped. The
            trainer adds the ids, the labels and the other values of the index.
        kept: Positions in `Plan.ids` of the samples in the batch, int64; None: all.
        skipped: The reason for each skipped sample, by the sample's row in the index.
        error: The exception because of which there is no batch, or None.
    """

    fields: dict[str, PackedTensor] = field(default_factory=dict)
    kept: NDArray[np.int64] | None = None
    skipped: dict[int, str] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def nbytes(self) -> int:
        """The size of the batch in bytes."""
        return sum(packed.array.nbytes for packed in self.fields.values())


def pack(tensor: torch.Tensor) -> PackedTensor:
    """Return a tensor as an array, which shares the memory of a tensor without gaps.

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
    """Return a writable tensor over the memory of an array.

    An array from the object store is read-only, because other processes may map the same object.
    Only one trainer reads an answer, so the tensor may be changed in place. The object store keeps
    the memory until the last tensor over it is freed.
    """
    array = packed.array
    tensor = torch.from_numpy(array if array.flags.writeable else _as_writable(array))
    tensor = tensor.permute(packed.axes) if packed.axes else tensor
    return tensor if packed.dtype is None else tensor.view(getattr(torch, packed.dtype))


def _as_writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return a writable array over the memory of a read-only array, and keep that array alive."""
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
    """Return the maximum number of tasks of one trainer: plans whose batches it has not taken.

    Args:
        wanted: The number of tasks that keeps all workers busy, or `loader.hwm`.
        is_explicit: Whether the config sets `loader.hwm`, so that the number may not be lowered.
        batch_bytes: The size in bytes of a batch as workers send it.
        finished: The number of finished batches that wait for the consumer.
        trainers: How many trainers share the node.
        store_bytes: The size of the node's object store in bytes.

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
    """Return the size in bytes of the largest batch of any epoch, from the specs of its fields.

    Returns None if a spec leaves a size open, or a field holds encoded files.
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
