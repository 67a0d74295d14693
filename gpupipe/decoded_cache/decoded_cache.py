"""DecodedCache: what engines look samples up in, and store them to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.byte_range import Span, read_states
from gpupipe.dataset.columns import Column
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import DecodedCacheOptions
from gpupipe.decoded_cache.layout import DamagedCache
from gpupipe.decoded_cache.location import describe_job, prepare_file
from gpupipe.decoded_cache.prefix import Prefix, find_prefixes
from gpupipe.decoded_cache.record_file import RecordFile
from gpupipe.errors import DataError
from gpupipe.pipeline.pipeline import Pipeline

FindSteps = Callable[[Pipeline], dict[str, Prefix]]


@dataclass(frozen=True)
class CachedSample:
    """One field of a sample, as it was looked up.

    Attributes:
        key: The hash of the file's place, size and modification time, and of the steps; None if the
            file cannot be seen, so that it is not kept.
        pixels: The result of the prefix, uint8 (H, W, C), which must not be changed. None if it
            is not in the cache.
        size: [height, width] of the whole image after decode; (0, 0) if it is not in the cache.
    """

    key: bytes | None
    pixels: NDArray[np.uint8] | None = None
    size: tuple[int, int] = (0, 0)


class DecodedCache:
    """The decoded samples of a job. Threads and forked processes may use it at once.

    It can be pickled: the copy opens the same file.

    Args:
        path: The cache file.
        samples: How many samples there are to keep.
        prefixes: The steps whose result is kept, by field.

    Raises:
        DataError: The file cannot be opened.
    """

    def __init__(self, path: Path, samples: int, prefixes: Mapping[str, Prefix]) -> None:
        self._path, self._samples = path, samples
        self.prefixes = prefixes
        self._digests = {name: prefix.digest for name, prefix in prefixes.items()}
        try:
            self._file = RecordFile(path, samples)
        except (OSError, ValueError, DamagedCache) as e:
            raise DataError(f"data.cache_decoded: {path} cannot be opened: {e}") from e

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedCache, (self._path, self._samples, self.prefixes)

    def count_steps(self) -> dict[str, int]:
        """Return how many steps of each field the cache keeps the result of."""
        return {name: len(prefix.entries) for name, prefix in self.prefixes.items()}

    def look_up(self, field: str, column: Column, rows: Iterable[int]) -> list[CachedSample]:
        """Look samples up. Call it before their files are read, so that a later change is seen.

        Args:
            field: A field that has a prefix.
            column: The field's column.
            rows: The samples' rows in the column.
        """
        spans = [column.span(row) for row in rows]
        states = iter(read_states([span.path for span in spans if span is not None]))
        return [
            CachedSample(None) if span is None else self._look_up(field, span, next(states))
            for span in spans
        ]

    def _look_up(self, field: str, span: Span, state: tuple[int, int] | None) -> CachedSample:
        if state is None:  # whoever reads the file says why
            return CachedSample(None)
        size, changed = state
        path = os.path.abspath(span.path)  # noqa: PTH100  # pathlib takes six times as long
        place = f"{span.offset} {span.length} {size} {changed} {path}"
        key = hashlib.blake2b(os.fsencode(place), key=self._digests[field], digest_size=16).digest()
        record = self._file.find(key)
        if record is None:
            return CachedSample(key)
        return CachedSample(key, self._file.pixels(record), record.size)

    def store(self, sample: CachedSample, pixels: NDArray[np.uint8], size: tuple[int, int]) -> None:
        """Keep the result of the prefix of a sample, if there is room for it.

        Args:
            sample: What `look_up` returned before the file was read.
            pixels: The result, uint8 (H, W, C).
            size: [height, width] of the whole image after decode.
        """
        if sample.key is not None:
            self._file.add(sample.key, np.ascontiguousarray(pixels), size)

    def close(self) -> None:
        """Store nothing any more. Pixels that are in use stay valid. Idempotent."""
        self._file.close()


def open_decoded_cache(
    options: DecodedCacheOptions | None,
    index: Index,
    pipeline: Pipeline,
    max_pixels: int | None,
    producer: str,
    packages: tuple[str, ...] = (),
    find_steps: FindSteps = find_prefixes,
) -> DecodedCache | None:
    """Open the decoded cache of a job; create it if necessary.

    Args:
        options: The settings; None for no cache.
        index: The samples.
        pipeline: The steps.
        max_pixels: Images with more pixels are refused.
        producer: The engine that makes the pixels, and how: engines do not share a cache, because
            their pixels may differ by a level.
        packages: The packages that make the pixels, beside those of all engines.
        find_steps: Finds the steps whose result is kept.

    Returns:
        The cache, or None without `options`.

    Raises:
        DataError: It does not fit, or the samples are in no files whose change could be seen.
    """
    if options is None:
        return None
    prefixes = find_steps(pipeline)
    for name in prefixes:
        column = index.columns[name]
        if len(column) and column.span(0) is None:
            raise DataError(
                f"data.cache_decoded: the samples of {index.root} are in no files whose change "
                f"could be seen, but come from a {type(column).__name__}: remove cache_decoded"
            )
    samples = len(index) * len(prefixes)
    job = describe_job(index.root, max_pixels, producer, packages, prefixes)
    return DecodedCache(prepare_file(options, job, samples), samples, prefixes)
