"""The end of a program: converts samples, writes them to their slots, and erases in the slots.

The last kernel of a program writes to a slot of an OutputBuffer, so that no sample is copied into
the batch.

    operations   ToDtypeOp, NormalizeOp, EraseOp, DeliverOp
    one kernel   slot[c] = table[c][pixels], and then the window of the EraseOp in the slot

For images of uint8, one lookup table does to_dtype, normalize and the conversion to the delivered
dtype. Many pipelines end with `random_erasing`. Its `erase` comes before the delivery, but the
kernel does it afterwards, in the batch. So conversion and delivery stay one pass over the image.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import noise
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.joined_buffers import Output
from gpupipe.engines.cpu.patterns import Match, Maybe, Pattern
from gpupipe.engines.cpu.pixels import Array, Pixels, as_tensor
from gpupipe.engines.cpu.program import Content, Kernel, Stage
from gpupipe.engines.cpu.unequal_buffer import UnequalBuffer, UnequalSlots
from gpupipe.engines.last_steps import Conversions, make_table

_DTYPES = ("uint8", "float16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "bool")
_DTYPES_OF_STAGES = (*_DTYPES, *_INTEGERS, "bfloat16")


@dataclass(frozen=True)
class DeliverOp(ops.Op):
    """Writes each sample to its slot in the batch.

    `sizes` is [height, width] of each image, (B, 2), if all of them are known.
    """

    output: Output
    sizes: NDArray[np.float64] | None = None

    def begin_all(self, channels: int, dtype: torch.dtype) -> Array | list[Array] | None:
        """Return the batch, (B, channels, H, W), if all images have one size that is known.

        Return a list of such arrays if several buffers are joined. Return None if the sizes differ
        or are not known, or if the output has no memory.
        """
        if self.sizes is None or not len(self.sizes):
            return None
        # Bytes are compared in fewer calls than arrays.
        if self.sizes.tobytes() != self.sizes[:1].tobytes() * len(self.sizes):
            return None
        height, width = map(int, self.sizes[0].tolist())
        if height < 1 or width < 1:
            return None
        return self.output.begin_all((channels, height, width), dtype)

    def begin_each(self, channels: int, dtype: torch.dtype) -> UnequalSlots | None:
        """Return the slots of the images, if their sizes are known and may differ.

        Return None if they are not known, or if samples must have one size.
        """
        output, sizes = self.output, self.sizes
        if not isinstance(output, UnequalBuffer) or sizes is None or not len(sizes):
            return None
        if sizes.min() < 1:
            return None
        return output.begin_each(channels, sizes.astype(np.int64), dtype)


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
    output: Output

    def table(self, channels: int) -> torch.Tensor:
        """Return the delivered value of each uint8 value: a tensor (channels, 1, 256)."""
        return make_table(self.conversions, self.dtype, channels)


def find_conversion(match: Match, is_compiled: bool = False) -> Conversion | None:
    """Return the conversion that the last operations of a match do.

    Args:
        match: The operations.
        is_compiled: Whether the kernel is one of the extension, which delivers more dtypes.

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
    if dtype not in (_DTYPES_OF_STAGES if is_compiled else _DTYPES):
        return None
    conversions: Conversions = ()
    if to_dtype is not None:
        conversions += (("to_dtype", (to_dtype.dtype, to_dtype.scale)),)
    if normalize is not None:
        conversions += (("normalize", (normalize.mean, normalize.std)),)
    return Conversion(conversions, format.dtype, deliver.output)


def find_planes(match: Match) -> Output | None:
    """Return the buffer of a delivery that only moves bytes to planes; None if it does more."""
    conversion = find_conversion(match)
    if conversion is None or conversion.conversions or conversion.dtype not in (None, "uint8"):
        return None
    return None if conversion.output.format.is_interleaved else conversion.output


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


def _erase_in_slot(erase: ops.EraseOp, output: Output, row: int) -> None:
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


def _deliver(output: Output, pixels: Pixels, row: int) -> None:
    """Copy a sample to its slot, and convert its dtype."""
    sample, dtype = as_tensor(pixels), output.format.dtype
    if output.begin(row, tuple(sample.shape), getattr(torch, dtype) if dtype else sample.dtype):
        output.slot(row).copy_(sample)
