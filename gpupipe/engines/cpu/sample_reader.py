"""Reads the samples of a batch, many in one call where possible: image files, arrays, or decoded
images from the cache.

    SampleReader.read   ids of a part of a batch -> FieldSamples of each field

A plain JPEG stays the bytes that were read until a native program runs on them. Python opens files
of other kinds, and those that a native program cannot do.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.annotations.rows import UNKNOWN
from gpupipe.dataset import columns
from gpupipe.dataset.columns import Column, read_bytes, read_rows
from gpupipe.dataset.mapped_files import MappedFiles
from gpupipe.dataset.spec import Spec
from gpupipe.decoded_cache.decoded_cache import CachedSample, DecodedCache
from gpupipe.decoders.chain import DecodeOptions, DecoderChain, EncodedImage
from gpupipe.engines.cpu.lowering import StepLowering
from gpupipe.engines.cpu.ops import Pixels
from gpupipe.engines.cpu.program import Content
from gpupipe.pipeline.spec_checks import is_picture
from gpupipe.pipeline.tensors import to_steps


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
_UPRIGHT = 1
"""The EXIF orientation of an image that is not turned."""
_Bytes = NDArray[np.uint8]
_Item = _Bytes | CachedSample | None
"""What was read of a sample at once: the bytes of a file, or its entry in the cache."""


@dataclass(frozen=True)
class FieldSamples:
    """What was read of one field, for several samples. Without an object of Python for each header.

    Attributes:
        contents: The image, array or bytes of each sample; None for those that are not read. A
            plain JPEG of a field that a step decodes is its bytes alone, if `DecoderChain.
            read_plain_sizes` found its size.
        sizes: [height, width] of each image or array, (N, 2); [0, 0] of what has none.
    """

    contents: list[Content | CachedImage | None]
    sizes: NDArray[np.float64]

    @classmethod
    def of_unread(cls, count: int) -> "FieldSamples":
        """Return an object for `count` samples, of which none is read."""
        return cls([None] * count, np.zeros((count, 2)))

    def put(self, rows: range, part: "FieldSamples") -> None:
        """Put the samples of `part` in the place of the successive samples `rows`."""
        self.contents[rows.start : rows.stop] = part.contents
        self.sizes[rows.start : rows.stop] = part.sizes

    def take(self, rows: range) -> list[Content | CachedImage | None]:
        """Return the contents of successive samples, and drop them here."""
        taken = self.contents[rows.start : rows.stop]
        self.contents[rows.start : rows.stop] = [None] * len(rows)
        return taken

    def select(self, rows: Sequence[int]) -> "FieldSamples":
        """Return the samples in `rows`, which are in order."""
        if len(rows) == len(self.contents):
            return self
        return FieldSamples([self.contents[row] for row in rows], self.sizes[list(rows)])


def find_size(content: Content | CachedImage) -> tuple[int, int]:
    """Return [height, width] of an image or array; [0, 0] of what has none, such as bytes."""
    if isinstance(content, Image):
        return content.size
    if isinstance(content, np.ndarray):
        return content.shape[0], content.shape[1]
    return (content.shape[-2], content.shape[-1]) if content.ndim > 2 else (0, 0)


def find_orientation(content: Content | CachedImage | None) -> int:
    """Return the EXIF orientation of an image file; UNKNOWN for what is no opened file."""
    if isinstance(content, CachedImage):
        content = content.content
    if isinstance(content, EncodedImage):
        return content.header.orientation
    is_plain_jpeg = isinstance(content, np.ndarray) and content.ndim == 1
    return _UPRIGHT if is_plain_jpeg else UNKNOWN


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
    ) -> dict[str, FieldSamples]:
        """Read samples; return each field of them. Samples that cannot be read stay unread.

        Args:
            ids: Rows of the index.
            on_error: Called with the position of a sample that cannot be read, and the error.
        """
        fields, left = {}, []
        for reader in self._readers:
            fields[reader.name], items = reader.read_at_once(ids)
            if items is not None:
                left.append((reader, fields[reader.name], items))
        if left:
            for n, id in enumerate(ids.tolist()):
                try:
                    for reader, field, items in left:
                        if field.contents[n] is None:
                            content = reader.read(id, items[n])
                            field.contents[n], field.sizes[n] = content, find_size(content)
                except Exception as e:
                    on_error(n, e)
        return fields

    def open(self, name: str, content: Content | CachedImage) -> Content | CachedImage:
        """Return a sample of a field as kernels of single samples take it: open a plain JPEG."""
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

    def read_at_once(self, ids: NDArray[np.int64]) -> tuple[FieldSamples, Sequence[_Item] | None]:
        """Read the field of all samples in one call, as far as that is possible.

        Returns:
            The samples, and what `read` needs for each of those that are unread: the bytes of its
            file or its entry in the cache, or None if it was not read at once. None in place of the
            items if no sample is unread.
        """
        samples = FieldSamples.of_unread(len(ids))
        items: Sequence[_Item] = [None] * len(ids)
        with suppress(Exception):  # reading the rows one by one raises the reason
            if self.cache is not None:
                items = self.cache.get(self.name, self.column, ids.tolist())
            elif self.maps is not None:
                items = self.maps.read(ids)
            elif len(ids) > 1:
                files = read_rows(self.column, ids)
                if self.options is not None:
                    return self._find_plain(files)
                items = files
        return samples, items

    def _find_plain(self, files: Sequence[_Bytes]) -> tuple[FieldSamples, Sequence[_Item] | None]:
        """Return the samples whose files are plain JPEGs as read; see `read_at_once`."""
        sizes = self.decoders.read_plain_sizes(files).astype(np.float64)
        if sizes.all():
            return FieldSamples(list(files), sizes), None
        are_plain = sizes[:, 0].astype(bool).tolist()
        pairs = zip(files, are_plain, strict=True)
        return FieldSamples([file if is_plain else None for file, is_plain in pairs], sizes), files

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
