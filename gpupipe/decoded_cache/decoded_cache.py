"""DecodedCache: gets and stores the decoded samples of an engine.

A Prefix holds the first steps of a field, whose output can be kept: decode, and the steps after it
that draw no random numbers.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column
from gpupipe.dataset.index import Index
from gpupipe.dataset.reading import Span, read_states
from gpupipe.dataset.source import DecodedCacheOptions
from gpupipe.decoded_cache.layout import DamagedCacheError
from gpupipe.decoded_cache.location import prepare_file
from gpupipe.decoded_cache.record_file import RecordFile
from gpupipe.errors import DataError
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime.failures import is_foreign
from gpupipe.runtime.installation import installed_version, own_version
from gpupipe.runtime.systems import explain_missing_posix


@dataclass(frozen=True)
class Prefix:
    """The first steps of a field, which output the same pixels in every epoch.

    Attributes:
        field: The name of the field.
        entries: decode, and the steps after it that draw no random numbers and output uint8.
    """

    field: str
    entries: tuple[Entry, ...]

    @property
    def steps(self) -> list[list[object]]:
        """The name and the parameters of each step, as plain JSON."""
        return [[entry.name, entry.identity()] for entry in self.entries]

    @property
    def digest(self) -> bytes:
        """A hash of the field's name, its steps and their parameters, 16 bytes."""
        content = json.dumps([self.field, self.steps], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).digest()


def find_prefixes(pipeline: Pipeline) -> dict[str, Prefix]:
    """Return the Prefix of each field of image files: the steps whose output the cache can keep.

    The result maps field names to prefixes, and leaves out fields without such steps. A prefix
    ends before the first step that another package defines, because the cache does not notice a
    new version of that package. It also ends before the first step with a parameter
    that a schedule changes.
    """
    prefixes = {}
    for name, spec in pipeline.fields.items():
        if not spec.encoded:
            continue
        of_phases = [phase.entries_on(name) for phase in pipeline.phases]
        common = takewhile(_are_equal, zip(*of_phases, strict=False))
        entries = tuple(takewhile(_can_be_kept, (same[0] for same in common)))
        if entries:
            prefixes[name] = Prefix(name, entries)
    return prefixes


def explain_refusal(pipeline: Pipeline) -> str:
    """Return why the decoded cache cannot keep the output of any step; "" if it can keep some."""
    if problem := explain_missing_posix("it"):
        return problem
    if find_prefixes(pipeline):
        return ""
    encoded = [name for name, spec in pipeline.fields.items() if spec.encoded]
    if not encoded:
        return "the samples are arrays, which need no decoding: remove it"
    entries = pipeline.entries_on(encoded[0])
    if not entries:
        return f"no step decodes the {encoded[0]}: remove it"
    first = entries[0]
    if is_foreign(type(first.step)):
        return f"{first.name} is a step of another package, whose pixels it cannot keep: remove it"
    return f"it keeps pixels of uint8, but {first.name} makes {first.output_spec.dtype}: remove it"


def _are_equal(entries: tuple[Entry, ...]) -> bool:
    """Return whether a step is the same in every phase; `entries` has its entry in each phase."""
    first = entries[0]
    return all(e.name == first.name and e.identity() == first.identity() for e in entries)


def _can_be_kept(entry: Entry) -> bool:
    step, spec = entry.step, entry.output_spec
    return (
        not is_foreign(type(step))
        and not step.runs_unknown_code
        and step.num_uniforms == 0
        and not spec.encoded
        and spec.dtype == "uint8"
        and spec.layout == "CHW"
    )


FindSteps = Callable[[Pipeline], dict[str, Prefix]]
_FORMAT = 1
_DECODERS = ("torch", "torchvision", "pillow", "numpy", "simplejpeg", "opencv-python-headless")
"""The packages whose versions may change the pixels that steps output, on every engine."""


@dataclass(frozen=True)
class CachedSample:
    """What the decoded cache has for one field of a sample.

    Attributes:
        key: The cache key: a hash of the steps, and of the path, byte range, size and modification
            time of the file. None if the file cannot be found; then nothing is cached.
        pixels: The output of the prefix, uint8 (H, W, C), which callers must not change. None if
            the sample is not in the cache.
        size: [height, width] of the whole image after decode; (0, 0) if `pixels` is None.
    """

    key: bytes | None
    pixels: NDArray[np.uint8] | None = None
    size: tuple[int, int] = (0, 0)


class DecodedCache:
    """Keeps the decoded samples of a job in a file.

    Threads and forked processes may use it at once. It can be pickled: the copy opens the same
    file.

    Args:
        path: The cache file.
        samples: The number of records in a complete cache: one per sample and field.
        prefixes: The steps whose output is kept, by field.

    Raises:
        DataError: The file cannot be opened.
    """

    def __init__(self, path: Path, samples: int, prefixes: Mapping[str, Prefix]) -> None:
        self._path, self._samples = path, samples
        self.prefixes = prefixes
        self._digests = {name: prefix.digest for name, prefix in prefixes.items()}
        try:
            self._file = RecordFile(path, samples)
        except (OSError, ValueError, DamagedCacheError) as e:
            raise DataError(f"data.cache_decoded: {path} cannot be opened: {e}") from e

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedCache, (self._path, self._samples, self.prefixes)

    def count_steps(self) -> dict[str, int]:
        """Return, by field, how many of the first steps the cached samples have been through."""
        return {name: len(prefix.entries) for name, prefix in self.prefixes.items()}

    def get(self, field: str, column: Column, rows: Iterable[int]) -> list[CachedSample]:
        """Look up samples, and return one result per row.

        Call this before reading the files of the samples. If a file then changes before it is read,
        its pixels are stored under a key that is out of date, and are never returned.

        Args:
            field: A field that has a prefix.
            column: The field's column.
            rows: The samples' rows in the column.

        Raises:
            DataError: Another program truncated the file of the cache.
        """
        try:
            self._file.check_unchanged()
        except DamagedCacheError as e:
            raise DataError(
                f"data.cache_decoded: {self._path}: {e}: stop what changes it, and load again"
            ) from e
        spans = [column.span(row) for row in rows]
        states = iter(read_states([span.path for span in spans if span is not None]))
        return [
            CachedSample(None) if span is None else self._get(field, span, next(states))
            for span in spans
        ]

    def _get(self, field: str, span: Span, state: tuple[int, int] | None) -> CachedSample:
        if state is None:  # the read of the file raises the error
            return CachedSample(None)
        size, changed = state
        path = os.path.abspath(span.path)  # noqa: PTH100  # pathlib takes six times as long
        where = f"{span.offset} {span.length} {size} {changed} {path}"
        key = hashlib.blake2b(os.fsencode(where), key=self._digests[field], digest_size=16).digest()
        record = self._file.find(key)
        if record is None:
            return CachedSample(key)
        return CachedSample(key, self._file.pixels(record), record.size)

    def store(self, sample: CachedSample, pixels: NDArray[np.uint8], size: tuple[int, int]) -> None:
        """Store the output of the prefix for a sample, if there is room for it.

        Args:
            sample: The result of `get`, which was called before the file was read.
            pixels: The output of the prefix, uint8 (H, W, C).
            size: [height, width] of the whole image after decode.
        """
        if sample.key is not None:
            self._file.add(sample.key, np.ascontiguousarray(pixels), size)

    def close(self) -> None:
        """Stop storing samples. Pixels that `get` returned stay valid. Idempotent."""
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
        producer: The engine and its decoder, such as "cpu with pillow". Engines do not share a
            cache, because their pixel values may differ by 1.
        packages: Further packages whose versions may change the pixels of this engine.
        find_steps: Finds the steps whose output is kept.

    Returns:
        The cache, or None without `options`.

    Raises:
        DataError: The cache does not fit into memory or onto the disk, cannot be opened, or the
            samples are not in files that can be checked for a change.
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


def describe_job(
    root: str,
    max_pixels: int | None,
    producer: str,
    packages: tuple[str, ...],
    prefixes: Mapping[str, Prefix],
) -> dict[str, Any]:
    """Return the values that identify a cache file, as plain JSON.

    If one of these values changes, the pixels in the file may change, too.

    Args:
        root: The folder of the data.
        max_pixels: Images with more pixels are refused.
        producer: The engine and its decoder, such as "cpu with pillow".
        packages: Further packages whose versions may change the pixels of this engine.
        prefixes: The steps whose output is kept, by field.
    """
    return {
        "root": root if "://" in root else str(Path(root).absolute()),
        "max_pixels": max_pixels,
        "engine": producer,
        "steps": {name: prefix.steps for name, prefix in sorted(prefixes.items())},
        "versions": {"gpupipe": own_version()}
        | {name: installed_version(name) or "" for name in (*_DECODERS, *packages)},
        "format": _FORMAT,
    }
