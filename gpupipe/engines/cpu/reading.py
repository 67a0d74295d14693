"""Reads the fields of samples: files, arrays, or what the decoded cache has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.dataset.columns import as_array, read_bytes, read_rows
from gpupipe.decoded_cache.decoded_cache import CachedSample, DecodedCache
from gpupipe.decoders.chain import DecoderChain, EncodedImage
from gpupipe.engines.cpu.lowering import StepLowering
from gpupipe.engines.cpu.program import Content
from gpupipe.pipeline.tensors import to_steps


@dataclass
class CachedImage:
    """An image that was looked up in the decoded cache.

    Attributes:
        sample: What the cache has of it.
        content: The pixels after the prefix; the file, if the cache lacks them.
        size: [height, width] of the decoded image, before the steps that follow.
    """

    sample: CachedSample
    content: EncodedImage | NDArray[np.uint8]
    size: tuple[int, int]


Image = EncodedImage | CachedImage
Fields = dict[str, Content | CachedImage]
"""What was read of a sample, by field."""
_Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class SampleReader:
    """Reads samples.

    Attributes:
        lowering: The fields, and the steps that decode them.
        decoders: Decode image files.
        cache: The decoded cache, or None.
        reads_only: Whether nothing is done but read. Then there is no cache.
    """

    lowering: StepLowering
    decoders: DecoderChain
    cache: DecodedCache | None
    reads_only: bool

    def read(
        self, ids: NDArray[np.int64], on_error: Callable[[int, Exception], None]
    ) -> Iterator[tuple[int, Fields]]:
        """Yield the position of each sample in `ids`, and its fields.

        Args:
            ids: Rows of the index.
            on_error: Gets the position of a sample that cannot be read, and the error.
        """
        fields = self.lowering.job.pipeline.fields
        at_once = {name: self._read_at_once(name, ids) for name in fields}
        for n, id in enumerate(ids.tolist()):
            try:
                contents: Fields = {}
                for name, data in at_once.items():
                    contents[name] = self._read_field(name, id, data[n] if data else None)
                yield n, contents
            except Exception as e:
                on_error(n, e)

    def _read_at_once(
        self, name: str, ids: NDArray[np.int64]
    ) -> Sequence[_Bytes | CachedSample] | None:
        """Return what can be read at once of a field: bytes of files, or CachedSamples."""
        job = self.lowering.job
        column, cache = job.index.columns[name], self._find_cache(name)
        try:
            if cache is not None:
                return cache.look_up(name, column, ids.tolist())
            if job.pipeline.fields[name].encoded and len(ids) > 1:
                return read_rows(column, ids)
        except Exception:  # the call for one row says why
            return None
        return None

    def _read_field(
        self, name: str, id: int, data: _Bytes | CachedSample | None
    ) -> Content | CachedImage:
        """Return an array, an image, or the bytes of a file that no step decodes.

        `data` is what was read at once, or None.
        """
        job, cache = self.lowering.job, self._find_cache(name)
        column, spec = job.index.columns[name], job.pipeline.fields[name]
        step = self.lowering.decode_step(name)
        if not spec.encoded:
            assert column.array is not None
            array = as_array(read_bytes(column, id), column.array, id)
            return to_steps(torch.from_numpy(array), spec.layout)
        if cache is not None and step is not None:
            cached = data
            if not isinstance(cached, CachedSample):
                (cached,) = cache.look_up(name, column, [id])
            if cached.pixels is not None:
                return CachedImage(cached, cached.pixels, cached.size)
            file = self.decoders.open(read_bytes(column, id), step.options)
            return CachedImage(cached, file, file.size)
        assert not isinstance(data, CachedSample)
        content = read_bytes(column, id, data)
        if step is None or self.reads_only:
            return torch.from_numpy(content)
        return self.decoders.open(content, step.options)

    def _find_cache(self, name: str) -> DecodedCache | None:
        """Return the cache if it keeps a field."""
        return self.cache if self.cache is not None and name in self.cache.prefixes else None
