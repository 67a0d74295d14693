"""Runs the programs of a batch on its samples, many in one call where possible.

A thread that re-takes the GIL after a native call waits for the other threads. So a thread runs the
native program of a field on several samples in one call without the GIL: see `stages`. The samples
share the scratch memory of the thread. Those that the native program cannot do run one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.builtin.jpeg_window import JpegWindow
from gpupipe.decoders.builtin.libpng import Libpng
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.delivery import DeliverOp
from gpupipe.engines.cpu.field_samples import CachedImage, FieldSamples
from gpupipe.engines.cpu.ops import DecodeOp
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.pixels import as_array, as_packed, scratch
from gpupipe.engines.cpu.program import Content, FieldProgram, run_groups
from gpupipe.engines.cpu.stages import Run, create_native, create_run, run_native
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime import tracing
from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.function_pool import IS_SKIPPED
from gpupipe.runtime.user_functions import FunctionMissingError

_NOT_NATIVE = b""
"""The content of a sample on which no native program runs."""
_OF_SAMPLES = (
    MemoryError,
    OSError,
    RuntimeError,
    ValueError,
    CallFailedError,
    FunctionMissingError,
)
"""What keeps a native program from running because of a sample's parameters, a function of the
user's, or the machine: samples that run alone raise errors of their own. Any other exception is a
mistake in the code: the batch fails with it."""


@dataclass(frozen=True)
class SampleRunner:
    """Runs the programs of a batch on its samples.

    Attributes:
        pipeline: The fields, and their views.
        programs: The programs of each field.
        samples: The samples of each field. `run` drops the contents of those that run one by one.
        open: Returns a sample of a field as the program takes it: see SampleReader.open.
        cache: The decoded cache, or None.
        on_error: Called with the row of a sample that failed, and the error.
        is_skipped: Returns whether to skip a row that has not started, and those after it.
        key: The name of the batch in traces.
    """

    pipeline: Pipeline
    programs: Mapping[str, FieldProgram]
    samples: Mapping[str, FieldSamples]
    open: Callable[[str, Content | CachedImage], Content | CachedImage]
    cache: DecodedCache | None
    on_error: Callable[[int, Exception], None]
    is_skipped: Callable[[int], bool]
    key: str

    @cached_property
    def native(self) -> Mapping[str, Run]:
        """The native program of each field that has one, by field; none while a trace is recorded,
        so that each kernel is timed by itself.

        For a field of the decoded cache, it continues from the cached pixels.
        """
        natives: dict[str, Run] = {}
        if not self.programs or tracing.is_recording():
            return natives
        for name in self.pipeline.fields:
            of_field = self.programs[name]
            with suppress(*_OF_SAMPLES):
                stage = create_native(of_field.program.rest, of_field.views)
                if stage is not None:
                    field = self.samples[name]
                    inputs = self._list_inputs(name, field)
                    natives[name] = create_run(stage, inputs, field.files, field.positions)
        return natives

    def cancel(self) -> None:
        """Run no further sample of a native program."""
        for run in self.__dict__.get("native", {}).values():
            run.cancel()

    def run(self, rows: range) -> None:
        """Run the programs on successive samples of the batch."""
        alone = [
            name for name in self.samples if name not in self.native and not self._copy(name, rows)
        ]
        failed = set()
        for row in rows if alone else ():
            if self.is_skipped(row):
                return
            if not self._run_alone(row, alone):
                failed.add(row)
        for name, run in self.native.items():
            if self.is_skipped(rows.start):
                return
            try:
                undone = run_native(run, rows)
            except _OF_SAMPLES:
                undone = list(rows)
            for row in undone:
                if self.is_skipped(row):
                    return
                if row not in failed and not self._run_alone(row, [name]):
                    failed.add(row)

    @cached_property
    def _copied(self) -> Mapping[str, OutputBuffer]:
        """The buffers of the fields that no step changes, such as labels; none while a trace is
        recorded.
        """
        if not self.programs or tracing.is_recording():
            return {}
        copied = {}
        for name in self.pipeline.fields:
            match self.programs[name].program.ops:
                case [DeliverOp(output=OutputBuffer() as output)]:
                    copied[name] = output
        return copied

    def _copy(self, name: str, rows: range) -> bool:
        """Copy samples of a field to their slots, all in one call; return whether it did."""
        output = self._copied.get(name)
        contents = self.samples[name].contents[rows.start : rows.stop]
        arrays = [c for c in contents if isinstance(c, (np.ndarray, torch.Tensor))]
        if output is None or len(arrays) < len(contents):
            return False
        with suppress(Exception):  # such as MemoryError: samples that run alone raise their own
            return output.put(rows, arrays)
        return False

    def _run_alone(self, row: int, names: Sequence[str]) -> bool:
        """Run some fields of a sample; return whether none failed."""
        scratch.begin_sample()
        token = IS_SKIPPED.set(partial(self.is_skipped, row))
        try:
            with tracing.span("sample", "loader", batch=self.key, row=row):
                for name in names:
                    content = self.samples[name].take(row)
                    assert content is not None
                    self._run_field(name, self.open(name, content), row)
        except Exception as e:
            self.on_error(row, e)
            return False
        finally:
            IS_SKIPPED.reset(token)
        return True

    def _list_inputs(self, name: str, field: FieldSamples) -> Sequence[object]:
        """Return the content of each sample for a native program; None for those in files."""
        contents, has_files = field.contents, field.files is not None
        if has_files and contents.count(None) == len(contents):
            return contents
        return [
            None if content is None and has_files else self._find_native(name, content)
            for content in contents
        ]

    def _find_native(self, name: str, content: Content | CachedImage | None) -> object:
        """Return the buffer on which a native program runs: a file, or pixels.

        Return _NOT_NATIVE if there is none: the file is no plain JPEG or PNG, or must be rotated.
        """
        if isinstance(content, CachedImage):
            return _NOT_NATIVE if isinstance(content.content, EncodedImage) else content.content
        if not isinstance(content, EncodedImage):
            return _NOT_NATIVE if content is None else as_array(content)
        decode = self.programs[name].program.ops[0]
        assert isinstance(decode, DecodeOp)
        is_plain = isinstance(content.decoder, JpegWindow | Libpng)
        return content.data if is_plain and content.is_upright(decode.options) else _NOT_NATIVE

    def _run_field(self, name: str, content: Content | CachedImage, row: int) -> None:
        program = self.programs[name].program
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
        for view in self.programs[name].views:
            view.run(pixels, row)
