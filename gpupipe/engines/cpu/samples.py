"""Reads the samples of a batch, and runs their programs, many in one call where possible.

    SampleReader    id -> fields: image files, arrays, or decoded images from the cache
    SampleRunner    fields -> slots of the batch

A thread that re-takes the GIL after a native call waits for the other threads. So a thread runs the
native program of a field on several samples in one call without the GIL: see `stages`. The samples
share the scratch memory of the thread. Those that the native program cannot do run one by one.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.annotations.rows import UNKNOWN
from gpupipe.dataset import columns
from gpupipe.dataset.columns import Column, read_bytes, read_rows
from gpupipe.dataset.mapped_files import MappedFiles
from gpupipe.dataset.spec import Spec
from gpupipe.decoded_cache.decoded_cache import CachedSample, DecodedCache
from gpupipe.decoders.builtin.jpeg_window import JpegWindow
from gpupipe.decoders.chain import DecodeOptions, DecoderChain, EncodedImage
from gpupipe.decoders.decoder import Header
from gpupipe.engines.cpu.lowering import StepLowering
from gpupipe.engines.cpu.ops import DecodeOp, Pixels, as_array, as_packed, scratch
from gpupipe.engines.cpu.program import Content, Program, Stage, run_groups
from gpupipe.engines.cpu.stages import create_native, run_native
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.spec_checks import is_picture
from gpupipe.pipeline.tensors import to_steps
from gpupipe.runtime import tracing

_MAX_PIXELS = 1 << 22
"""About how many pixels one call processes. A batch that is cancelled waits for the call to end."""


@dataclass
class CachedImage:
    """An image of a field whose decoded images the cache keeps.

    Attributes:
        sample: The cache's entry for the image.
        content: The cached pixels, or the image file if the cache does not have them yet.
        size: [height, width] of the decoded image, before the steps that follow.
    """

    sample: CachedSample
    content: EncodedImage | NDArray[np.uint8]
    size: tuple[int, int]


Image = EncodedImage | CachedImage
Fields = dict[str, Content | CachedImage]
"""The image, array or bytes of each field of a sample, by field name."""
_Bytes = NDArray[np.uint8]
_Item = tuple[_Bytes | CachedSample, Header | None]
"""What was read of a sample at once: bytes of a file, with its header if it was parsed; or its
entry in the cache."""


def find_size(content: Content | CachedImage) -> tuple[int, int]:
    """Return [height, width] of an image or array; [0, 0] of what has none, such as bytes."""
    if isinstance(content, Image):
        return content.size
    if isinstance(content, np.ndarray):
        return content.shape[0], content.shape[1]
    return (content.shape[-2], content.shape[-1]) if content.ndim > 2 else (0, 0)


def find_orientation(content: Content | CachedImage) -> int:
    """Return the EXIF orientation of an image file; UNKNOWN for what is no opened file."""
    if isinstance(content, CachedImage):
        content = content.content
    return content.header.orientation if isinstance(content, EncodedImage) else UNKNOWN


@dataclass(frozen=True)
class SampleReader:
    """Reads the fields of samples from files, arrays or the decoded cache.

    Attributes:
        lowering: The fields, and the steps that decode them.
        decoders: The decoders of image files.
        cache: The decoded cache, or None.
        reads_only: Whether to return image files as bytes. Then `cache` must be None.
        maps: The mapped files of each field of arrays that is read from maps, by field.
    """

    lowering: StepLowering
    decoders: DecoderChain
    cache: DecodedCache | None
    reads_only: bool
    maps: Mapping[str, MappedFiles]

    def read(
        self, ids: NDArray[np.int64], on_error: Callable[[int, Exception], None]
    ) -> Iterator[tuple[int, Fields]]:
        """Yield each sample that can be read: its position in `ids`, and its fields.

        Args:
            ids: Rows of the index.
            on_error: Called with the position of a sample that cannot be read, and the error.
        """
        readers = {name: self._create_reader(name) for name in self.lowering.job.pipeline.fields}
        none: list[tuple[()]] = [()] * len(ids)
        at_once = [(name, r.read, r.read_at_once(ids) or none) for name, r in readers.items()]
        for n, id in enumerate(ids.tolist()):
            try:
                yield n, {name: read(id, *rows[n]) for name, read, rows in at_once}
            except Exception as e:
                on_error(n, e)

    def _create_reader(self, name: str) -> "_FieldReader":
        job, step = self.lowering.job, self.lowering.decode_step(name)
        return _FieldReader(
            name=name,
            column=job.index.columns[name],
            spec=job.pipeline.fields[name],
            options=None if step is None or self.reads_only else step.options,
            cache=self.cache if self.cache is not None and name in self.cache.prefixes else None,
            decoders=self.decoders,
            maps=self.maps.get(name),
        )


@dataclass(frozen=True)
class _FieldReader:
    """Reads one field of samples.

    Attributes:
        name: The field.
        column: The column of the index that reads the bytes.
        spec: The spec of the field as it is stored.
        options: How to decode an image file; None for files that no step decodes.
        cache: The decoded cache, if it keeps the field; else None.
        decoders: The decoders of image files.
        maps: The mapped files, if the bytes are read from maps; else None.
    """

    name: str
    column: Column
    spec: Spec
    options: DecodeOptions | None
    cache: DecodedCache | None
    decoders: DecoderChain
    maps: MappedFiles | None

    def read_at_once(self, ids: NDArray[np.int64]) -> Sequence[_Item] | None:
        """Read the field of all samples in one call: bytes, or CachedSamples.

        Return None if that is not possible, or fails.
        """
        try:
            if self.cache is not None:
                samples = self.cache.get(self.name, self.column, ids.tolist())
                return [(sample, None) for sample in samples]
            if self.maps is None and len(ids) < 2:
                return None
            files = self.maps.read(ids) if self.maps is not None else read_rows(self.column, ids)
            headers: Sequence[Header | None] = [None] * len(files)
            if self.options is not None:
                headers = self.decoders.read_headers(files)
            return list(zip(files, headers, strict=True))
        except Exception:  # reading the rows one by one raises the reason
            return None
        return None

    def read(
        self, id: int, data: _Bytes | CachedSample | None = None, header: Header | None = None
    ) -> Content | CachedImage:
        """Return an array, an image, or the bytes of a file that no step decodes.

        `data` and `header` are the sample's item in the result of `read_at_once`, if it has one.
        """
        if self.cache is not None and self.options is not None:
            return self._read_cached(self.cache, self.options, id, data)
        assert not isinstance(data, CachedSample)
        if not self.spec.encoded:
            return self._read_array(id, data)
        content = read_bytes(self.column, id, data)
        if self.options is None:
            return torch.from_numpy(content)
        return self.decoders.open(content, self.options, header)

    def _read_array(self, id: int, data: _Bytes | None) -> Pixels:
        layout, axes = self.column.array, self.spec.layout
        assert layout is not None
        if not is_picture(self.spec):
            array = columns.as_array(read_bytes(self.column, id, data), layout, id)
            return to_steps(torch.from_numpy(array), axes)
        content = read_bytes(self.column, id) if data is None else data
        image = columns.as_array(content, layout, id)
        return image[:, :, None] if axes == "HW" else image.transpose(*map(axes.index, "HWC"))

    def _read_cached(
        self, cache: DecodedCache, options: DecodeOptions, id: int, data: object
    ) -> CachedImage:
        cached = data
        if not isinstance(cached, CachedSample):
            (cached,) = cache.get(self.name, self.column, [id])
        if cached.pixels is not None:
            return CachedImage(cached, cached.pixels, cached.size)
        file = self.decoders.open(read_bytes(self.column, id), options)
        return CachedImage(cached, file, file.size)


@dataclass(frozen=True)
class SampleRunner:
    """Runs the programs of a batch on its samples.

    Attributes:
        pipeline: The fields, and their views.
        programs: The program of each field and view.
        cache: The decoded cache, or None.
        on_error: Called with the row of a sample that failed, and the error.
        is_cancelled: Returns whether to skip the samples that have not started.
        key: The name of the batch in traces.
    """

    pipeline: Pipeline
    programs: Mapping[str, Program]
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

    def run(self, samples: Mapping[int, Fields]) -> None:
        """Run the programs on `samples`: the fields of each sample, by its row in the batch."""
        waiting: dict[int, Fields] = {}
        pixels = 0
        for row, contents in samples.items():
            if self.is_cancelled():
                return
            left = self._run_alone(row, contents, self.native)
            if not left:
                continue
            waiting[row] = left
            pixels += sum(prod(find_size(content)) for content in left.values())
            if pixels > _MAX_PIXELS:
                self._run_native(waiting)
                waiting, pixels = {}, 0
        if waiting:
            self._run_native(waiting)

    def _run_alone(self, row: int, contents: Fields, later: Container[str]) -> Fields:
        """Run the fields of a sample that are not in `later`. Return the others, if none failed."""
        if all(name in later for name in contents):
            return contents
        scratch.begin_sample()
        try:
            with tracing.span("sample", "loader", batch=self.key, row=row):
                for name, content in contents.items():
                    if name not in later:
                        self._run_field(name, content, row)
        except Exception as e:
            self.on_error(row, e)
            return {}
        return {name: content for name, content in contents.items() if name in later}

    def _run_native(self, samples: Mapping[int, Fields]) -> None:
        """Run the native program of each field; run the samples that it cannot do one by one."""
        for name, stage in self.native.items():
            contents = [self._find_native(name, sample[name]) for sample in samples.values()]
            able = [row for row, data in zip(samples, contents, strict=True) if data is not None]
            try:
                failed = run_native(stage, able, [data for data in contents if data is not None])
                done = set(able).difference(able[n] for n in failed)
            except Exception:  # such as MemoryError: samples that run alone raise their own errors
                done = set()
            left = [row for row in samples if row not in done]
            for row in left:
                self._run_alone(row, {name: samples[row][name]}, ())

    def _find_native(self, name: str, content: Content | CachedImage) -> object | None:
        """Return the buffer on which a native program runs: a file, or pixels.

        Return None if there is none: the file is no plain JPEG, or must be rotated.
        """
        if isinstance(content, CachedImage):
            return None if isinstance(content.content, EncodedImage) else content.content
        if not isinstance(content, EncodedImage):
            return as_array(content)
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
