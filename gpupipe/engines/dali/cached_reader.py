"""Reads decoded samples from the decoded cache, and decodes those that it lacks.

    plans --> look up --> pixels of the cache ----------------+--> Read --> graph of the other steps
                 |                                            |
                 +--> samples that it lacks --> graph of -----+--> cache
                                                the first steps

With a decoded cache, the steps run in two graphs. The first graph decodes, and runs the steps whose
result the cache keeps. It runs only for samples that the cache lacks; these may differ in size. The
second graph begins with pixels, from the cache or from the first graph.
"""

from collections.abc import Generator, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from gpupipe.decoded_cache.decoded_cache import (
    CachedSample,
    DecodedCache,
    Prefix,
    find_prefixes,
    open_decoded_cache,
)
from gpupipe.engines.base import Job
from gpupipe.engines.dali.graph import GraphRunner
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.engines.dali.reader import BuildOptions, Read, Reader, make_reader
from gpupipe.errors import EngineError, StepError
from gpupipe.sampling.sampler import Plan

_CUDA = ("dali-cuda120", "dali-cuda130", "nvimgcodec-cu12", "nvimgcodec-cu13")
_PACKAGES = tuple(f"nvidia-{name}" for name in _CUDA)
Cached = dict[str, list[CachedSample]]
"""The cache entry of each sample of a plan, by field."""
Outcomes = Generator[tuple[Plan, Any], None, None]


class CachedReader(Reader):
    """Reads a job's samples as pixels from the decoded cache; decodes samples that it lacks.

    Args:
        job: The job.
        cache: The cache, which keeps all fields of image files.
        options: How the reader and the graph of the first steps are built.
    """

    def __init__(self, job: Job, cache: DecodedCache, options: BuildOptions) -> None:
        super().__init__()
        self._job, self._cache = job, cache
        first_steps = replace(
            job.pipeline,
            entries=tuple(e for b in cache.prefixes.values() for e in b.entries),
            fields={name: job.pipeline.fields[name] for name in cache.prefixes},
            views={},
            annotations={},
        )
        first = replace(job, pipeline=first_steps)
        lowering = Lowering(first, "cpu", options.may_cut, as_it_is=True)
        self._files = make_reader(lowering, options.fields, options.checks_jpegs)
        self._runner = GraphRunner(lowering, None, self._files, options.fields)
        self._reads: Generator[Read, None, None] = self._iter_reads()

    def start(self, plans: Iterable[Plan]) -> None:
        self._plans, self._reads = iter(plans), self._iter_reads()

    def drop(self) -> None:
        self.end()
        self._reads.close()

    def close(self) -> None:
        self.end()
        self._files.close()
        self._runner.close()

    @property
    def was_destroyed(self) -> bool:
        return self._files.was_destroyed

    def __next__(self) -> Read:
        return next(self._reads)

    def _iter_reads(self) -> Generator[Read, None, None]:
        """Yield a Read for each plan. One run decodes the uncached samples of several plans."""
        while plans := list(islice(self._plans, self._job.loader.prefetch)):
            cached = [self._get_cached(plan) for plan in plans]
            missing = [_find_missing(samples) for samples in cached]
            first_steps = self._runner.run_undelivered(
                plan.select(rows) for plan, rows in zip(plans, missing, strict=True) if len(rows)
            )
            try:
                for plan, samples, rows in zip(plans, cached, missing, strict=True):
                    yield self._read(plan, samples, rows, first_steps)
            finally:
                first_steps.close()

    def _get_cached(self, plan: Plan) -> Cached:
        columns = self._job.index.columns
        return {
            name: self._cache.get(name, columns[name], plan.ids.tolist())
            for name in self._cache.prefixes
        }

    def _read(self, plan: Plan, samples: Cached, rows: list[int], first_steps: Outcomes) -> Read:
        """Return the pixels of a plan: `rows` from `first_steps`, all other rows from the cache."""
        data: dict[str, list[Any]] = {
            name: [sample.pixels for sample in of_field] for name, of_field in samples.items()
        }
        outputs: Any = ()
        if rows:
            early_end = plan, EngineError("DALI ended before its last batch")
            try:
                _, outputs = next(first_steps, early_end)
            except (EngineError, StepError) as e:
                outputs = e
            if isinstance(outputs, RuntimeError | EngineError | StepError):
                return Read(plan, error=outputs)
            self._fill(samples, rows, outputs, data)
        size = {
            name: np.array([pixels.shape[:2] for pixels in of_field], np.float64)
            for name, of_field in data.items()
        }
        return Read(plan, data, size, buffers=[outputs])

    def _fill(
        self, samples: Cached, rows: list[int], outputs: Any, data: dict[str, list[Any]]
    ) -> None:
        """Put `outputs`, the pixels of the samples in `rows`, into `data` and into the cache."""
        for (name, of_field), tensors in zip(samples.items(), outputs, strict=True):
            for row, tensor in zip(rows, tensors, strict=True):
                pixels = np.asarray(tensor)
                data[name][row] = pixels
                # The second graph needs no size of the whole image: it begins with these pixels.
                self._cache.store(of_field[row], pixels, pixels.shape[:2])


def _find_missing(samples: Cached) -> list[int]:
    """Return the rows of the samples that have at least one uncached field."""
    of_sample = zip(*samples.values(), strict=True)
    return [row for row, fields in enumerate(of_sample) if any(f.pixels is None for f in fields)]


def open_cache(job: Job, device: str, may_cut: bool) -> DecodedCache | None:
    """Open the decoded cache of a job; None if the config asks for none.

    Args:
        job: The job.
        device: The engine's device.
        may_cut: Whether the decoder may decode a region of an image.

    Raises:
        DataError: The memory or disk has no room for the cache, or it cannot be opened.
        EngineError: DALI decodes on a GPU, or the cache cannot keep every field of image files.
    """
    if job.cache_decoded is None:
        return None
    if device != "cpu":
        raise EngineError(
            "data.cache_decoded: DALI decodes on the GPU, where the cache has no use: write "
            "device: cpu or engine: cpu, or remove cache_decoded"
        )
    args = job.cache_decoded, job.index, job.pipeline, job.max_pixels, "dali"
    return open_decoded_cache(*args, _PACKAGES, lambda _: _find_kept_steps(job, may_cut))


def _find_kept_steps(job: Job, may_cut: bool) -> dict[str, Prefix]:
    """Return the first steps of each field, whose result DALI puts into the cache.

    The steps end before a resize if DALI fuses that resize with a step that cannot be kept.

    Raises:
        EngineError: The cache cannot keep every field of image files.
    """
    prefixes = find_prefixes(job.pipeline)
    for name, spec in job.pipeline.fields.items():
        if spec.encoded and name not in prefixes:
            raise EngineError(
                f"data.cache_decoded: it cannot keep the {name} of this pipeline, and DALI keeps "
                "all fields of image files or none: write engine: cpu, or remove it"
            )
    lowerings = [Lowering(phase, "cpu", may_cut) for phase in job.list_phases()]
    kept = {}
    for name, prefix in prefixes.items():
        count = min(x.find_unfused(name, len(prefix.entries)) for x in lowerings)
        if job.pipeline.annotations_of(name):
            count = 1  # the sizes of decoded images are those of the cached pixels
        kept[name] = Prefix(name, prefix.entries[:count])
    return kept
