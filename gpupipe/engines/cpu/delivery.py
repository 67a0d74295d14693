"""The end of a program: converts samples, writes them to their slots, and erases in the slots.

An OutputBuffer is the tensor (B, ...) of one field of a batch, in which each sample has a slot. The
last kernel of a program writes there, so that no sample is copied into the batch.

    operations   ToDtypeOp, NormalizeOp, EraseOp, DeliverOp
    one kernel   slot[c] = table[c][pixels], and then the window of the EraseOp in the slot

For images of uint8, one lookup table does to_dtype, normalize and the conversion to the delivered
dtype. Many pipelines end with `random_erasing`. Its `erase` comes before the delivery, but the
kernel does it afterwards, in the batch. So conversion and delivery stay one pass over the image.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from threading import Lock
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import noise
from gpupipe.dataset.layout import canonical_layout
from gpupipe.engines.batch import DeliveryFormat, flatten
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.ops import Array, Pixels, as_tensor, view_as_array
from gpupipe.engines.cpu.program import Content, Kernel, Match, Maybe, Pattern, Stage
from gpupipe.engines.last_steps import Conversions, make_table
from gpupipe.pipeline.tensors import from_steps, to_steps
from gpupipe.runtime.batch_memory import BatchMemory

_DTYPES = ("uint8", "float16", "float32", "float64", "bfloat16")


class OutputBuffer:
    """The tensor (B, ...) of one field of a batch.

    A kernel calls `begin` for a sample, and then writes into its slot. The first `begin` allocates
    the tensor, since the shape is not certain before a file is decoded.

    Args:
        count: Number of samples in the batch.
        format: How the field is delivered.
        memory: The pool that allocates the tensor; None if nothing is delivered.
        is_equal: Whether all samples must have one shape. If not, each gets memory of its own.

    Attributes:
        format: How the field is delivered.
        shapes: The shape of each sample for which `begin` was called, by its row.
    """

    def __init__(
        self,
        count: int,
        format: DeliveryFormat,
        memory: BatchMemory | None,
        is_equal: bool = True,
    ) -> None:
        self.format, self._is_equal = format, is_equal
        self._slots: dict[int, torch.Tensor] = {}
        """The samples that have memory of their own, by row."""
        self._flat: torch.Tensor | None = None
        """The memory of `begin_each`, if all samples still have their slots in it."""
        self.shapes: dict[int, tuple[int, ...]] = {}
        self._have_one_shape = False
        """Whether `begin_all` recorded a shape that all samples still have."""
        self._batch: torch.Tensor | None = None
        self._array: Array = np.empty(0)
        self._count, self._memory, self._lock = count, memory, Lock()

    @property
    def is_allocated(self) -> bool:
        """Whether a call of `begin` has allocated the tensor, and so fixed the shape."""
        return self._batch is not None

    @property
    def is_interleaved(self) -> bool:
        """Whether the channels of a pixel are next to each other, as in (H, W, C)."""
        return self.format.channels_last or self.format.layout == "HWC"

    def begin(self, row: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Record the shape of a sample. The first sample's shape becomes that of all slots.

        Args:
            row: The sample's position in the batch.
            shape: The sample's shape in the order of axes of steps: (C, H, W) for an image.
            dtype: The dtype to deliver.

        Returns:
            Whether the sample has a slot. It has none if the buffer has no memory, or if the
            sample's shape differs from the shape of the first sample.
        """
        delivered = self._delivered(shape)
        self._have_one_shape = self._have_one_shape and self.shapes[row] == delivered
        if self._memory is None:
            self.shapes[row] = delivered
            return False
        if self._batch is None and not self._is_equal:
            if row not in self._slots or self.shapes[row] != delivered:
                self._slots[row] = self._as_steps(self._memory.allocate(delivered, dtype))
                self._flat = None
            self.shapes[row] = delivered
            return True
        self.shapes[row] = delivered
        return self._begin_batch(self._memory, shape, dtype)

    def _begin_batch(self, memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Allocate the tensor, unless it is; return whether its slots have this shape."""
        if self._batch is None:
            with self._lock:
                if self._batch is None:
                    batch = self._allocate(memory, shape, dtype)
                    self._array = view_as_array(batch)
                    self._batch = batch
        return self._array.shape[1:] == shape

    def begin_all(self, shape: tuple[int, ...], dtype: torch.dtype) -> Array | None:
        """Record one shape for all samples of the batch.

        Returns:
            The tensor as a NumPy array (B, ...), bfloat16 as int16; None if the buffer has no
            memory, or if a sample that was recorded before has another shape.
        """
        if self._memory is None or not self._begin_batch(self._memory, shape, dtype):
            return None
        self.shapes = dict.fromkeys(range(self._count), self._delivered(shape))
        self._have_one_shape = True
        return self._array

    def begin_each(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[Array]:
        """Record a shape for each sample of the batch.

        Returns:
            The slot of each sample as a NumPy array, bfloat16 as int16; [] if the buffer has no
            memory, or if all samples must have one shape.
        """
        if self._memory is None or self._is_equal or self._batch is not None or self._slots:
            return []
        self.shapes = {row: self._delivered(shape) for row, shape in enumerate(shapes)}
        counts = [prod(shape) for shape in self.shapes.values()]
        self._flat = self._memory.allocate((sum(counts),), dtype)
        parts = zip(torch.split(self._flat, counts), self.shapes.values(), strict=True)
        self._slots = {row: self._as_steps(p.view(shape)) for row, (p, shape) in enumerate(parts)}
        return [view_as_array(slot) for slot in self._slots.values()]

    def _as_steps(self, slot: torch.Tensor) -> torch.Tensor:
        layout = self.format.layout
        return slot if layout is None else to_steps(slot, layout)

    def have_one_shape(self, rows: Iterable[int]) -> bool:
        """Return whether samples have one shape. `begin` or `begin_all` must have recorded each."""
        return self._have_one_shape or len({self.shapes[row] for row in rows}) < 2

    def has_slot(self, row: int) -> bool:
        """Return whether a sample has a slot; False before `begin` was called for it."""
        if row in self._slots:
            return True
        has_shape = self._batch is not None and row in self.shapes
        return has_shape and self.shapes[row] == self._delivered(self._array.shape[1:])

    def slot(self, row: int) -> torch.Tensor:
        """Return the slot of a sample, a view of the batch in the order of axes of steps.

        The sample must have a slot.
        """
        if row in self._slots:
            return self._slots[row]
        assert self._batch is not None
        return self._batch[row]

    def slot_array(self, row: int) -> Array:
        """Return the slot as a NumPy array; a bfloat16 slot is viewed as int16."""
        if row in self._slots:
            return view_as_array(self._slots[row])
        slot: Array = self._array[row]
        return slot

    def take(self, rows: list[int]) -> torch.Tensor:
        """Return the samples in `rows` as a tensor (B, ...). Each of them must have a slot.

        If samples may differ in shape, return the elements of all of them, (elements,).
        """
        layout = self.format.layout
        if not self._is_equal:
            if self._flat is not None and len(rows) == self._count:
                return self._flat
            slots = [self.slot(row) for row in rows]
            return flatten(slots if layout is None else [from_steps(s, layout) for s in slots])
        assert self._batch is not None
        batch = self._batch if len(rows) == self._count else self._batch[rows]
        return batch if layout is None else from_steps(batch, layout, axes_before=1)

    def _delivered(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Convert the shape of a sample from the order of axes of steps to that of delivery."""
        layout = self.format.layout
        if layout is None:
            return shape
        sizes = dict(zip(canonical_layout(layout), shape, strict=True))
        return tuple(sizes[axis] for axis in layout)

    def _allocate(
        self, memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return a batch, (B, ...) in the order of axes of steps, of the delivered strides."""
        if self.format.layout is not None:
            batch = memory.allocate((self._count, *self._delivered(shape)), dtype)
            return to_steps(batch, self.format.layout, axes_before=1)
        if self.format.channels_last and len(shape) == 3:
            channels, height, width = shape
            packed = memory.allocate((self._count, height, width, channels), dtype)
            return packed.permute(0, 3, 1, 2)
        return memory.allocate((self._count, *shape), dtype)


@dataclass(frozen=True)
class DeliverOp(ops.Op):
    """Writes each sample to its slot in the batch.

    `sizes` is [height, width] of each image, (B, 2), if all of them are known.
    """

    output: OutputBuffer
    sizes: NDArray[np.float64] | None = None

    def begin_all(self, channels: int, dtype: torch.dtype) -> Array | None:
        """Return the batch, (B, channels, H, W), if all images have one size that is known.

        Return None if they have not, or if the output has no memory.
        """
        if self.sizes is None or not len(self.sizes) or (self.sizes != self.sizes[0]).any():
            return None
        height, width = map(int, self.sizes[0].tolist())
        if height < 1 or width < 1:
            return None
        return self.output.begin_all((channels, height, width), dtype)

    def begin_each(self, channels: int, dtype: torch.dtype) -> list[Array] | None:
        """Return the slot (1, channels, H, W) of each image, if their sizes are known and differ.

        Return None if they are not known, or if samples must have one size.
        """
        if self.sizes is None or not len(self.sizes) or (self.sizes < 1).any():
            return None
        sizes = self.sizes.astype(int).tolist()
        slots = self.output.begin_each([(channels, *size) for size in sizes], dtype)
        return [slot[None] for slot in slots] or None


CONVERTED: Pattern = (Maybe(ops.ToDtypeOp), Maybe(ops.NormalizeOp), Maybe(ops.EraseOp), DeliverOp)
"""The last operations that a kernel with a conversion matches; only the delivery is required."""


@dataclass(frozen=True)
class Conversion:
    """The conversion of uint8 pixels to the delivered values.

    Attributes:
        conversions: The calls of to_dtype and normalize, with their options.
        dtype: The dtype to deliver; None keeps the dtype after `conversions`.
        output: The buffer that the samples are written to.
    """

    conversions: Conversions
    dtype: str | None
    output: OutputBuffer

    def table(self, channels: int) -> torch.Tensor:
        """Return the delivered value of each uint8 value: a tensor (channels, 1, 256)."""
        return make_table(self.conversions, self.dtype, channels)


def find_conversion(match: Match, has_bfloat16: bool = False) -> Conversion | None:
    """Return the conversion that the last operations of a match do.

    Args:
        match: The operations.
        has_bfloat16: Whether the kernel delivers bfloat16, a dtype that NumPy lacks.

    Returns:
        The conversion; None if the samples are not uint8 images, or if the kernel cannot deliver
        their dtype.
    """
    to_dtype, normalize = match.get(ops.ToDtypeOp), match.get(ops.NormalizeOp)
    deliver = match[DeliverOp]
    spec, format = (to_dtype or normalize or deliver).spec, deliver.output.format
    dtype = format.dtype or (to_dtype.dtype if to_dtype else "uint8")
    if spec.encoded or spec.dtype != "uint8" or spec.layout != "CHW":
        return None
    if dtype not in _DTYPES or (dtype == "bfloat16" and not has_bfloat16):
        return None
    conversions: Conversions = ()
    if to_dtype is not None:
        conversions += (("to_dtype", (to_dtype.dtype, to_dtype.scale)),)
    if normalize is not None:
        conversions += (("normalize", (normalize.mean, normalize.std)),)
    return Conversion(conversions, format.dtype, deliver.output)


def end_with_delivery(
    name: str,
    match: Match,
    write: Callable[[Pixels, int], None],
    stage: Callable[[], Stage | None] | None = None,
) -> Kernel:
    """Return a kernel that writes a sample to its slot, and then does the EraseOp in the slot.

    Args:
        name: The name of the kernel.
        match: The operations. The last is a DeliverOp, with an optional EraseOp before it.
        write: Runs all operations but the EraseOp.
        stage: Returns the stage of all operations: see Kernel.
    """
    erase, output = match.get(ops.EraseOp), match[DeliverOp].output

    def run(content: Content, row: int) -> Pixels:
        pixels = cast(Pixels, content)
        write(pixels, row)
        if erase is not None:
            _erase_in_slot(erase, output, row)
        return pixels

    return Kernel(name, run, stage)


def _erase_in_slot(erase: ops.EraseOp, output: OutputBuffer, row: int) -> None:
    top, left, height, width = ops.as_ints(erase.windows, row)
    if height and width and output.has_slot(row):
        window = output.slot(row)[:, top : top + height, left : left + width]
        if erase.seeds is None:
            values = torch.tensor(erase.value)[:, None, None]
        else:
            field = noise.normal_field(erase.seeds[row], (height, width, len(window)))
            values = torch.from_numpy(field).permute(2, 0, 1)
        window[...] = values.to(getattr(torch, erase.spec.dtype))


def find_delivery(match: Match) -> Kernel | None:
    """Return the kernel of a delivery, with an optional erase."""
    output = match[DeliverOp].output
    return end_with_delivery("deliver", match, partial(_deliver, output))


def _deliver(output: OutputBuffer, pixels: Pixels, row: int) -> None:
    """Copy a sample to its slot, and convert its dtype."""
    sample, dtype = as_tensor(pixels), output.format.dtype
    if output.begin(row, tuple(sample.shape), getattr(torch, dtype) if dtype else sample.dtype):
        output.slot(row).copy_(sample)
