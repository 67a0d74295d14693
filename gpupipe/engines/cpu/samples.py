"""Runs the programs of a batch on its samples, many in one call where possible.

A thread that re-takes the GIL after a native call waits for the other threads. So a thread runs the
native program of a field on several samples in one call without the GIL: see `stages`. The samples
share the scratch memory of the thread. Those that the native program cannot do run one by one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.builtin.jpeg_window import JpegWindow
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.ops import DecodeOp, as_array, as_packed, scratch
from gpupipe.engines.cpu.program import Content, Program, Stage, run_groups
from gpupipe.engines.cpu.sample_reader import CachedImage, FieldSamples
from gpupipe.engines.cpu.stages import create_native, run_native
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime import tracing

_MAX_PIXELS = 1 << 23
"""About how many pixels one call processes. A batch that is cancelled waits for the call to end."""
_ARRAYS = {np.ndarray}


@dataclass(frozen=True)
class SampleRunner:
    """Runs the programs of a batch on its samples.

    Attributes:
        pipeline: The fields, and their views.
        programs: The program of each field and view.
        samples: The samples of each field. `run` drops their contents.
        open: Returns a sample of a field as the program takes it: see SampleReader.open.
        cache: The decoded cache, or None.
        on_error: Called with the row of a sample that failed, and the error.
        is_cancelled: Returns whether to skip the samples that have not started.
        key: The name of the batch in traces.
    """

    pipeline: Pipeline
    programs: Mapping[str, Program]
    samples: Mapping[str, FieldSamples]
    open: Callable[[str, Content | CachedImage], Content | CachedImage]
    cache: DecodedCache | None
    on_error: Callable[[int, Exception], None]
    is_cancelled: Callable[[], bool]
    key: str

    @cached_property
    def native(self) -> Mapping[str, Stage]:
        """The native program of each field that has one, by field; none while a trace is recorded,
        so that each kernel is timed by itself.

        For a field of the decoded cache, it continues from the cached pixels.
        """
        natives: dict[str, Stage] = {}
        if not self.programs or tracing.is_recording():
            return natives
        for name in self.pipeline.fields:
            views = [self.programs[view] for view in self.pipeline.views_of(name)]
            with suppress(Exception):  # such as MemoryError: samples raise errors of their own
                stage = create_native(self.programs[name].rest, views)
                if stage is not None:
                    natives[name] = stage
        return natives

    def run(self, rows: range) -> None:
        """Run the programs on successive samples of the batch."""
        contents = {name: field.take(rows) for name, field in self.samples.items()}
        alone = [name for name in contents if name not in self.native]
        left: Sequence[int] = rows
        if alone:
            left = [
                row
                for n, row in enumerate(rows)
                if not self.is_cancelled()
                and self._run_alone(row, {name: contents[name][n] for name in alone})
            ]
        for part in self._split(left) if self.native else ():
            if self.is_cancelled():
                return
            for name, stage in self.native.items():
                of_field = contents[name]
                if len(part) < len(rows):
                    of_field = [of_field[row - rows.start] for row in part]
                self._run_native(name, stage, part, of_field)

    @cached_property
    def _pixels(self) -> list[float]:
        """How many pixels each sample has in the fields with a native program."""
        every = [self.samples[name].sizes.prod(1) for name in self.native]
        pixels: list[float] = np.sum(every, 0).tolist()
        return pixels

    def _split(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        """Split samples into parts of about _MAX_PIXELS pixels."""
        first, pixels = 0, 0.0
        for n, row in enumerate(rows):
            pixels += self._pixels[row]
            if pixels > _MAX_PIXELS:
                yield rows[first : n + 1]
                first, pixels = n + 1, 0.0
        if first < len(rows):
            yield rows[first:]

    def _run_alone(self, row: int, contents: Mapping[str, Content | CachedImage | None]) -> bool:
        """Run some fields of a sample; return whether none failed."""
        scratch.begin_sample()
        try:
            with tracing.span("sample", "loader", batch=self.key, row=row):
                for name, content in contents.items():
                    assert content is not None
                    self._run_field(name, self.open(name, content), row)
        except Exception as e:
            self.on_error(row, e)
            return False
        return True

    def _run_native(
        self,
        name: str,
        stage: Stage,
        rows: Sequence[int],
        contents: Sequence[Content | CachedImage | None],
    ) -> None:
        """Run the native program of a field; run the samples that it cannot do one by one."""
        able, inputs = rows, cast("Sequence[object]", contents)
        if set(map(type, contents)) != _ARRAYS:
            buffers = [self._find_native(name, content) for content in contents]
            pairs = zip(rows, buffers, strict=True)
            done_by = {row: buffer for row, buffer in pairs if buffer is not None}
            able, inputs = list(done_by), list(done_by.values())
        try:
            failed = run_native(stage, able, inputs)
        except Exception:  # such as MemoryError: samples that run alone raise their own errors
            failed = list(range(len(able)))
        if failed or len(able) < len(rows):
            done = set(able).difference(able[n] for n in failed)
            for row, content in zip(rows, contents, strict=True):
                if row not in done:
                    self._run_alone(row, {name: content})

    def _find_native(self, name: str, content: Content | CachedImage | None) -> object | None:
        """Return the buffer on which a native program runs: a file, or pixels.

        Return None if there is none: the file is no plain JPEG, or must be rotated.
        """
        if isinstance(content, CachedImage):
            return None if isinstance(content.content, EncodedImage) else content.content
        if not isinstance(content, EncodedImage):
            return None if content is None else as_array(content)
        decode = self.programs[name].ops[0]
        assert isinstance(decode, DecodeOp)
        is_jpeg = isinstance(content.decoder, JpegWindow) and content.is_upright(decode.options)
        return content.data if is_jpeg else None

    def _run_field(self, name: str, content: Content | CachedImage, row: int) -> None:
        program = self.programs[name]
        if not isinstance(content, CachedImage):
            pixels = program.run(content, row)
        elif not isinstance(content.content, EncodedImage):
            pixels = run_groups(program.rest, content.content, row)
        else:
            prefix = run_groups(program.prefix, content.content, row)
            if self.cache is not None:
                packed = cast("NDArray[np.uint8]", as_packed(prefix))
                self.cache.store(content.sample, packed, content.size)
            pixels = run_groups(program.rest, prefix, row)
        for view in self.pipeline.views_of(name):
            self.programs[view].run(pixels, row)
