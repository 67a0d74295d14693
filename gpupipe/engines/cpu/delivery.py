"""The end of a program: samples are converted, written to their slots, and erased there.

to_dtype, normalize and the conversion to the delivered dtype are one look-up for images of uint8.
Most pipelines end with `random_erasing`. So an `erase` before the delivery is done after it, in the
memory of the batch: the conversion before and the delivery are one pass over the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from gpupipe.engines.cpu.ops import DeliverOp, EraseOp, NormalizeOp, ToDtypeOp
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.pixels import Pixels, as_tensor
from gpupipe.engines.cpu.program import Content, Kernel, Match, Maybe, Pattern, Prepare
from gpupipe.engines.uint8_conversion import Conversions, make_table
from gpupipe.pipeline.tensors import from_steps

CONVERTED: Pattern = (Maybe(ToDtypeOp), Maybe(NormalizeOp), Maybe(EraseOp), DeliverOp)
"""Ends of programs for kernels that convert."""
_DTYPES = ("uint8", "float16", "float32", "float64", "bfloat16")


@dataclass(frozen=True)
class Conversion:
    """What becomes of each level of uint8 until it is delivered.

    Attributes:
        numbers: What to_dtype and normalize compute.
        dtype: The dtype to deliver; None keeps that of `numbers`.
        output: Where the samples go.
    """

    numbers: Conversions
    dtype: str | None
    output: OutputBuffer

    def table(self, channels: int) -> torch.Tensor:
        """Return the new values of each level: a tensor (channels, 1, 256)."""
        return make_table(self.numbers, self.dtype, channels)


def find_conversion(match: Match, has_bfloat16: bool = False) -> Conversion | None:
    """Return the conversion at the end of a match of `CONVERTED`.

    Args:
        match: The operations.
        has_bfloat16: Whether the kernel delivers bfloat16, a dtype that NumPy lacks.

    Returns:
        None if the samples are no images of uint8, or if the kernel cannot deliver their dtype.
    """
    to_dtype, normalize, deliver = match.get(ToDtypeOp), match.get(NormalizeOp), match[DeliverOp]
    spec, format = (to_dtype or normalize or deliver).spec, deliver.output.format
    dtype = format.dtype or (to_dtype.dtype if to_dtype else "uint8")
    if spec.encoded or spec.dtype != "uint8" or format.layout is not None:
        return None
    if dtype not in _DTYPES or (dtype == "bfloat16" and not has_bfloat16):
        return None
    numbers: Conversions = ()
    if to_dtype is not None:
        numbers += (("to_dtype", (to_dtype.dtype, to_dtype.scale)),)
    if normalize is not None:
        numbers += (("normalize", (normalize.mean, normalize.std)),)
    return Conversion(numbers, format.dtype, deliver.output)


def end_with_delivery(
    name: str, match: Match, write: Callable[[Pixels, int], None], prepare: Prepare | None = None
) -> Kernel:
    """Return a kernel that writes samples to their slots, and then erases there.

    Args:
        name: The name of the kernel.
        match: The operations, with a DeliverOp as the last, and perhaps an EraseOp before it.
        write: Runs all of them but the EraseOp.
        prepare: Prepares what `write` does.
    """
    erase, output = match.get(EraseOp), match[DeliverOp].output
    finish = None if erase is None else partial(_erase_in_slot, erase, output)

    def run(content: Content, row: int) -> Pixels:
        pixels = cast(Pixels, content)
        write(pixels, row)
        if finish is not None:
            finish(row)
        return pixels

    return Kernel(name, run, prepare, finish)


def _erase_in_slot(erase: EraseOp, output: OutputBuffer, row: int) -> None:
    top, left, height, width = erase.windows[row]
    if height and width and output.has_slot(row):
        value = torch.tensor(erase.value, dtype=getattr(torch, erase.spec.dtype))
        output.slot(row)[:, top : top + height, left : left + width] = value[:, None, None]


def find_delivery(match: Match) -> Kernel | None:
    """Return the kernel that delivers any sample, and perhaps erases in an image."""
    output = match[DeliverOp].output
    if match.get(EraseOp) is not None and output.format.layout is not None:
        return None
    return end_with_delivery("deliver", match, partial(_deliver, output))


def _deliver(output: OutputBuffer, pixels: Pixels, row: int) -> None:
    """Copy a sample to its slot, and convert its dtype."""
    tensor, format = as_tensor(pixels), output.format
    sample = tensor if format.layout is None else from_steps(tensor, format.layout)
    dtype = sample.dtype if format.dtype is None else getattr(torch, format.dtype)
    if output.begin(row, tuple(sample.shape), dtype):
        output.slot(row).copy_(sample)
