"""Runs the programs of a batch on its samples, several in one call where they can be prepared.

A thread that re-takes the GIL waits for the other threads. So a thread prepares several samples as
tasks, and runs them in one call without the GIL. A task decodes an image file, with the extension
`gpupipe._jpeg`, and then does what the last kernel of the program does. The tasks run one after the
other. So the decoded pixels of all samples share the scratch memory of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.builtin.jpeg_window import JpegWindow
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.delivery import DeliverOp, OutputBuffer
from gpupipe.engines.cpu.ops import CropOp, DecodeOp, is_inside
from gpupipe.engines.cpu.pixels import as_packed, scratch
from gpupipe.engines.cpu.program import Content, Group, Kernel, Maybe, Program, Task, match_pattern
from gpupipe.engines.cpu.reading import CachedImage, Fields, Image
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime import tracing
from gpupipe.runtime.compiled_extension import find_extension

_MAX_PIXELS = 1 << 22
"""About so many are in one call, so that it can be cancelled soon."""
_RGB = 3
_kernels = find_extension()


@dataclass(frozen=True)
class Preparation:
    """Prepares a decode or nothing, a crop or nothing, and a kernel that can be prepared.

    Attributes:
        decode: The decode of an image file; None if the content is pixels.
        crop: The crop; None if there is none.
        kernel: The kernel.
        output: Where it delivers.
    """

    decode: DecodeOp | None
    crop: CropOp | None
    kernel: Kernel
    output: OutputBuffer

    def prepare(self, content: Content, row: int) -> Task | None:
        """Return the task of a sample; None if it must run one operation after the other."""
        if self.decode is None:
            return self._prepare_kernel(content, row, None)
        assert isinstance(content, EncodedImage)
        decode, decoder = self.decode, content.decoder
        if not isinstance(decoder, JpegWindow) or not content.is_upright(decode.options):
            return None
        # A file that cannot be decoded must not decide the shape of the batch.
        if not self.output.is_allocated:
            return None
        pixels = scratch.take((*content.size, _RGB))
        window = decode.windows[row] if decode.windows else None
        before: Task = decoder.prepare(content.header, content.data, window, pixels)
        return self._prepare_kernel(pixels, row, before)

    def _prepare_kernel(self, pixels: Content, row: int, before: Task | None) -> Task | None:
        assert isinstance(pixels, np.ndarray) and self.kernel.prepare is not None
        if self.crop is not None:
            window = self.crop.windows[row]
            if not is_inside(window, pixels.shape):
                return None
            top, left, rows, columns = window
            pixels = pixels[top : top + rows, left : left + columns]
        if pixels.strides[1:] != (_RGB, 1):
            return None
        return self.kernel.prepare(pixels, row, before)


def find_preparation(groups: Sequence[Group]) -> Preparation | None:
    """Return what prepares all groups as one task; None if they are others than it knows."""
    if not groups or _kernels is None:
        return None
    *before, (kernel, ops) = groups
    deliver = ops[-1]
    if kernel.prepare is None or not isinstance(deliver, DeliverOp):
        return None
    first = [op for _, part in before for op in part]
    match = match_pattern((Maybe(DecodeOp), Maybe(CropOp)), first)
    if match is None or len(match.ops) < len(first):
        return None
    decode, crop = match.get(DecodeOp), match.get(CropOp)
    if crop is not None and crop.fill is not None:
        return None
    if decode is not None and (decode.options.mode, decode.options.dtype) != ("rgb", "uint8"):
        return None
    return Preparation(decode, crop, kernel, deliver.output)


@dataclass(frozen=True)
class _Prepared:
    row: int
    name: str
    image: Image
    task: Task


@dataclass(frozen=True)
class SampleRunner:
    """Runs the programs of a batch.

    Attributes:
        pipeline: The fields, and their views.
        programs: The program of each field and view.
        cache: The decoded cache, or None.
        on_error: Gets the row of a sample that failed, and the error.
        is_cancelled: Returns whether nobody waits for the samples any more.
        key: The batch, for the trace.
    """

    pipeline: Pipeline
    programs: Mapping[str, Program]
    cache: DecodedCache | None
    on_error: Callable[[int, Exception], None]
    is_cancelled: Callable[[], bool]
    key: str

    @cached_property
    def preparations(self) -> Mapping[str, Preparation]:
        """What prepares samples to run several in one call, by field."""
        found = {name: find_preparation(program.rest) for name, program in self.programs.items()}
        return {name: preparation for name, preparation in found.items() if preparation}

    def run(self, samples: Mapping[int, Fields]) -> None:
        """Run samples: their fields, by row."""
        prepared: list[_Prepared] = []
        pixels = 0
        for row, contents in samples.items():
            if self.is_cancelled():
                return
            scratch.begin_sample()
            try:
                with tracing.span("sample", "loader", batch=self.key, row=row):
                    added = self._run_or_prepare(row, contents)
            except Exception as e:
                self.on_error(row, e)
                continue
            prepared += added
            pixels += sum(prod(part.image.size) for part in added)
            if pixels > _MAX_PIXELS:
                self._run_prepared(prepared)
                prepared, pixels = [], 0
        if prepared:
            self._run_prepared(prepared)

    def _run_or_prepare(self, row: int, contents: Fields) -> list[_Prepared]:
        """Run what cannot be prepared of a sample; return the rest."""
        prepared = []
        for name, content in contents.items():
            if isinstance(content, Image) and (task := self._prepare(name, content, row)):
                prepared.append(_Prepared(row, name, content, task))
            else:
                self._run_field(name, content, row)
        return prepared

    def _prepare(self, name: str, image: Image, row: int) -> Task | None:
        """Return the task of all operations that a field needs, or None.

        While operators are recorded there is none, so that each has its own time.
        """
        preparation = self.preparations.get(name)
        if preparation is None or tracing.is_recording():
            return None
        if isinstance(image, EncodedImage):
            return preparation.prepare(image, row)
        is_cached = not isinstance(image.content, EncodedImage)
        return preparation.prepare(image.content, row) if is_cached else None

    def _run_field(self, name: str, content: Content | CachedImage, row: int) -> None:
        program = self.programs[name]
        if not isinstance(content, CachedImage):
            pixels = program.run(content, row)
        elif not isinstance(content.content, EncodedImage):
            pixels = program.run_rest(content.content, row)
        else:
            prefix = program.run_prefix(content.content, row)
            if self.cache is not None:
                packed = cast("NDArray[np.uint8]", as_packed(prefix))
                self.cache.store(content.sample, packed, content.size)
            pixels = program.run_rest(prefix, row)
        for view in self.pipeline.views_of(name):
            self.programs[view].run(pixels, row)

    def _run_prepared(self, prepared: list[_Prepared]) -> None:
        try:
            are_done = run_tasks([part.task for part in prepared])
        except Exception:  # such as MemoryError: a sample that runs alone says what it lacks
            are_done = [False] * len(prepared)
        for part, is_done in zip(prepared, are_done, strict=True):
            scratch.begin_sample()
            try:
                finish = self.preparations[part.name].kernel.finish
                if not is_done:
                    self._run_field(part.name, part.image, part.row)
                elif finish is not None:
                    finish(part.row)
            except Exception as e:
                self.on_error(part.row, e)


def run_tasks(tasks: Sequence[Task]) -> list[bool]:
    """Do the tasks of several samples in one call without the GIL, one after the other.

    Returns:
        Whether each was done. It was not if the image is damaged.
    """
    done: list[bool] = _kernels.run(tasks)
    return done
