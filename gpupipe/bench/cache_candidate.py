"""Whether `gpupipe tune` can try the decoded cache, and how much memory that would take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpupipe.batch_stage.stage import BatchStage
from gpupipe.config import Config, Shard
from gpupipe.dataset.index import Index
from gpupipe.decoded_cache.decoded_cache import find_prefixes
from gpupipe.decoded_cache.location import free_shared_memory
from gpupipe.engines import registry
from gpupipe.loader import create_loader
from gpupipe.sampling.selection import DEFAULTS

SETTING = "data.cache_decoded"
_SAMPLES = 32
_MAX_SHARE = 0.5
"""The most of the free memory that the cache may take. The rest is for batches and the trainer."""
_HEADROOM = 1.1
"""Samples that were not measured may be larger, and each has a record."""


@dataclass(frozen=True)
class CacheCandidate:
    """A decoded cache for a whole data set.

    Attributes:
        samples: The number of samples.
        sample_bytes: What a sample takes, in the mean.
        options: The value of `data.cache_decoded`.
    """

    samples: int
    sample_bytes: float

    @property
    def options(self) -> Mapping[str, Any]:
        size = max(1, math.ceil(_HEADROOM * self.samples * self.sample_bytes / 1e6))
        return {"where": "memory", "max_bytes": f"{size}MB"}

    @property
    def needed_bytes(self) -> float:
        """The bytes of memory that the cache may take."""
        return 1e6 * float(self.options["max_bytes"].removesuffix("MB"))


def find_candidate(config: Config, index: Index, on_gpu: bool) -> CacheCandidate | None:
    """Return the cache to try; None if the config has one, or it is of no use, or does not fit.

    Args:
        config: The config to tune.
        index: Its samples.
        on_gpu: Whether the loader delivers to a GPU.
    """
    engine, pipeline = registry.find_for(config), config.pipeline
    decodes_on_gpu = on_gpu and "gpu" in engine.traits.backends
    has_cache = config.source.cache_decoded is not None
    if has_cache or not engine.traits.keeps_decoded or decodes_on_gpu or not len(index):
        return None
    prefix = find_prefixes(pipeline).get(pipeline.main)
    if prefix is None or len(pipeline.fields) > 1 or index.columns[pipeline.main].span(0) is None:
        return None
    sizes = list(_iter_sizes(config, index, len(prefix.entries)))
    if not sizes:
        return None
    candidate = CacheCandidate(len(index), float(np.mean(sizes)))
    return candidate if candidate.needed_bytes <= _MAX_SHARE * free_shared_memory() else None


def _iter_sizes(config: Config, index: Index, steps: int) -> Iterator[int]:
    """Yield the bytes of a few samples after the first steps."""
    rows = np.unique(np.linspace(0, len(index) - 1, _SAMPLES).astype(np.int64))
    settings = {"batch_size": 1, "shuffle": False, **DEFAULTS, "dtype": None, "format": "dict"}
    settings |= {"shard": Shard(), "on_error": "skip", "max_bad": 1.0}
    beginning = replace(
        config,
        pipeline=config.pipeline.first_steps(steps),
        loader=config.loader.model_copy(update=settings),
        batch=BatchStage(),
    )
    with create_loader(beginning, index.subset(rows)) as loader:
        for batch in loader:
            yield batch[config.pipeline.main].numel()
