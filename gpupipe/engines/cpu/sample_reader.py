"""Reads the samples of a batch, many in one call where possible: image files, arrays, or decoded
images from the cache.

    SampleReader.begin  ids of a batch -> FieldSamples of each field, of which none is read
    SampleReader.read   reads a part of them

A plain JPEG or PNG stays the bytes that were read until a native program runs on them. Python opens
files of other kinds, and those that a native program cannot do.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.dataset import columns
from gpupipe.dataset.columns import Column, read_bytes, read_rows
from gpupipe.dataset.mapped_files import MappedFiles
from gpupipe.dataset.reading import FileSet
from gpupipe.dataset.spec import Spec
from gpupipe.decoded_cache.decoded_cache import CachedSample, DecodedCache
from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.engines.cpu.field_samples import CachedImage, FieldSamples, Image, find_size
from gpupipe.engines.cpu.lowering import StepLowering
from gpupipe.engines.cpu.output_buffer import MAX_JOINED
from gpupipe.engines.cpu.pixels import Pixels
from gpupipe.engines.cpu.program import Content
from gpupipe.pipeline.spec_checks import is_picture
from gpupipe.pipeline.tensors import to_steps

_Bytes = NDArray[np.uint8]
_Item = _Bytes | CachedSample | None
"""What was read of a sample at once: the bytes of a file, or its entry in the cache."""


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

    def begin(self, ids: NDArray[np.int64]) -> dict[str, FieldSamples]:
        """Return the samples of each field, of which none is read. `ids` are rows of the index."""
        return {reader.name: reader.begin(ids) for reader in self._readers}

    def read(
        self,
        samples: Mapping[str, FieldSamples],
        rows: range,
        ids: NDArray[np.int64],
        on_error: Callable[[int, Exception], None],
    ) -> None:
        """Read successive samples. Those that cannot be read stay unread.

        Args:
            samples: The result of `begin`.
            rows: The positions of the samples.
            ids: Their rows in the index.
            on_error: Called with the position of a sample that cannot be read, and the error.
        """
        left = []
        for reader in self._readers:
            field = samples[reader.name]
            items = reader.read_at_once(field, rows, ids)
            if items is not None:
                left.append((reader, field, items))
        if left:
            for row, id, n in zip(rows, ids.tolist(), range(len(rows)), strict=True):
                try:
                    for reader, field, items in left:
                        if not reader.has_read(field, row):
                            content = reader.read(id, items[n])
                            field.contents[row], field.sizes[row] = content, find_size(content)
                except Exception as e:
                    on_error(row, e)

    def open(self, name: str, content: Content | CachedImage) -> Content | CachedImage:
        """Return a sample of a field as kernels of single samples take it: open a plain image."""
        options = self._options(name)
        if options is None or isinstance(content, Image):
            return content
        return self.decoders.open(content, options)

    @cached_property
    def _readers(self) -> "list[_FieldReader]":
        return [self._create_reader(name) for name in self.lowering.job.pipeline.fields]

    def _options(self, name: str) -> DecodeOptions | None:
        step = self.lowering.decode_step(name)
        return None if step is None or self.reads_only else step.options

    def _create_reader(self, name: str) -> "_FieldReader":
        job = self.lowering.job
        return _FieldReader(
            name=name,
            column=job.index.columns[name],
            spec=job.pipeline.fields[name],
            options=self._options(name),
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

    def begin(self, ids: NDArray[np.int64]) -> FieldSamples:
        """Return samples of which none is read."""
        files = None
        if self.options is not None and self.cache is None and self.decoders.plain_formats:
            files = self.column.open_files(ids)
        return FieldSamples.of_unread(len(ids), files)

    def has_read(self, samples: FieldSamples, row: int) -> bool:
        """Return whether a sample needs no further reading."""
        is_plain = samples.files is not None and samples.sizes[row, 0] > 0
        return is_plain or samples.contents[row] is not None

    def read_at_once(
        self, samples: FieldSamples, rows: range, ids: NDArray[np.int64]
    ) -> Sequence[_Item] | None:
        """Read successive samples in one call, as far as that is possible.

        Returns:
            What `read` needs for each of those that are unread: the bytes of its file or its entry
            in the cache, or None if it was not read at once. None in place of the items if no
            sample is unread.
        """
        if samples.files is not None:
            return self._read_files(samples, samples.files, rows)
        items: Sequence[_Item] = [None] * len(ids)
        with suppress(Exception):  # reading the rows one by one raises the reason
            if self.cache is not None:
                items = self.cache.get(self.name, self.column, ids.tolist())
            elif self.maps is not None:
                items = self.maps.read(ids)
            elif len(ids) > 1:
                files = read_rows(self.column, ids)
                if self.options is not None:
                    part = self._find_plain(files)
                    samples.put(rows, part)
                    return None if part.sizes.all() else files
                joined = self._join_arrays(files)
                if joined is not None:
                    samples.put(rows, joined)
                    return None
                items = files
        return items

    def _read_files(
        self, samples: FieldSamples, files: FileSet, rows: range
    ) -> Sequence[_Item] | None:
        limit, formats = self.decoders.max_pixels, self.decoders.plain_formats
        limit = -1 if limit is None else limit
        if not files.read(rows.start, rows.stop, samples.sizes, limit, formats):
            return None
        heights = samples.sizes[rows.start : rows.stop, 0].tolist()
        others = [
            None if height else files.take(row) for row, height in zip(rows, heights, strict=True)
        ]
        return [None if data is None else np.frombuffer(data, np.uint8) for data in others]

    def _find_plain(self, files: Sequence[_Bytes]) -> FieldSamples:
        """Return the samples whose files are plain images as read, and all others as unread."""
        sizes = self.decoders.read_plain_sizes(files).astype(np.float64)
        are_plain = sizes[:, 0].astype(bool).tolist()
        pairs = zip(files, are_plain, strict=True)
        return FieldSamples([file if is_plain else None for file, is_plain in pairs], sizes)

    def _join_arrays(self, files: Sequence[_Bytes]) -> FieldSamples | None:
        """Return small arrays of one shape, such as labels; None if the field is none of these."""
        layout, axes = self.column.array, self.spec.layout
        if self.spec.encoded or is_picture(self.spec) or layout is None or layout.shape is None:
            return None
        size = prod(layout.shape) * np.dtype(layout.dtype).itemsize
        if not 0 < size <= MAX_JOINED or set(map(len, files)) != {size}:
            return None
        array = np.concatenate(files).view(layout.dtype).reshape(len(files), *layout.shape)
        samples = to_steps(torch.from_numpy(array), axes, axes_before=1)
        sizes = np.tile(np.array(find_size(samples[0]), np.float64), (len(files), 1))
        return FieldSamples([*samples.unbind()], sizes)

    def read(self, id: int, data: _Item = None) -> Content | CachedImage:
        """Return an array, an image, or the bytes of a file that no step decodes.

        `data` is the sample's item in the result of `read_at_once`.
        """
        if self.cache is not None and self.options is not None:
            return self._read_cached(self.cache, self.options, id, data)
        assert not isinstance(data, CachedSample)
        if not self.spec.encoded:
            return self._read_array(id, data)
        content = read_bytes(self.column, id, data)
        if self.options is None:
            return torch.from_numpy(content)
        return self.decoders.open(content, self.options)

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
