"""Lists the settings and values that `gpupipe tune` tries; one of them is the decoded cache."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gpupipe.bench.parity import keep_first_steps
from gpupipe.config import LoaderConfig
from gpupipe.dataset.index import Index
from gpupipe.decoded_cache.decoded_cache import find_prefixes
from gpupipe.decoded_cache.location import free_shared_memory
from gpupipe.engines.base import BatchStream
from gpupipe.loader import create_loader
from gpupipe.loading.assembly import ResolvedConfig

CACHE_SETTING = "data.cache_decoded"
_SAMPLES = 32
_MAX_SHARE = 0.5
"""The largest share of free shared memory for the cache; batches and the trainer need some too."""
_HEADROOM = 1.1
"""The factor on the estimated size of the cache. It covers the cache's record of each sample, and
samples that are larger than the measured ones.
"""


@runtime_checkable
class Tunable(Protocol):
    """An engine class with more settings to tune than its parallelism and `prefetch`."""

    def tunable(self, on_gpu: bool, cores: Sequence[int]) -> dict[str, list[Any]]:
        """Return a dict from the name of each further setting to the values to try. A class method.

        Args:
            on_gpu: Whether the loader runs on a GPU.
            cores: The numbers of threads or workers to try on this machine.
        """


@dataclass(frozen=True)
class CacheCandidate:
    """The estimated size of a decoded cache for a whole data set.

    Attributes:
        samples: The number of samples.
        sample_bytes: The mean size of a cached sample in bytes.
    """

    samples: int
    sample_bytes: float

    @property
    def needed_bytes(self) -> int:
        """The size limit of the cache in bytes: the estimate plus 10 %, rounded up to whole MB."""
        return 10**6 * max(1, math.ceil(_HEADROOM * self.samples * self.sample_bytes / 1e6))

    @property
    def options(self) -> Mapping[str, Any]:
        """The value of `data.cache_decoded` in the config: in memory, limited to `needed_bytes`."""
        return {"where": "memory", "max_bytes": f"{self.needed_bytes // 10**6}MB"}


def list_candidates(
    options: LoaderConfig,
    engine: type[BatchStream],
    gpu: bool,
    cores: int,
    cache: CacheCandidate | None = None,
) -> dict[str, list[Any]]:
    """Return a dict from the name of each setting to the values that `gpupipe tune` tries.

    batch_size comes last, because it also changes training.

    Args:
        options: The original loader settings.
        engine: The engine's class.
        gpu: Whether the loader runs on a GPU.
        cores: How many cores the process may use.
        cache: The decoded cache to try; None for none.
    """
    around = sorted({max(1, cores // 2), cores, cores + max(1, cores // 2)})
    general = {engine.traits.parallelism_setting: list(around), "prefetch": [1, 2, 4]}
    choices: dict[str, list[Any]] = {
        name: values for name, values in general.items() if name in engine.settings
    }
    if isinstance(engine, Tunable):
        choices |= engine.tunable(gpu, around)
    if cache is not None:
        choices[CACHE_SETTING] = [cache.options]
    size = options.batch_size
    return choices | {"batch_size": sorted({max(1, size // 2), size, 2 * size})}


def find_cache_candidate(
    resolved: ResolvedConfig, index: Index, on_gpu: bool
) -> CacheCandidate | None:
    """Decode up to 32 samples to estimate the size of a decoded cache for the whole data set.

    Returns None if the config already has a cache, if a cache would not help, or if the cache would
    take more than half of the free shared memory.

    Args:
        resolved: The config to tune.
        index: Its samples.
        on_gpu: Whether the loader delivers to a GPU.
    """
    config, traits = resolved.config, resolved.engine.traits
    pipeline = config.pipeline
    decodes_on_gpu = on_gpu and "gpu" in traits.backends
    has_cache = config.source.cache_decoded is not None
    if has_cache or not traits.keeps_decoded or decodes_on_gpu or not len(index):
        return None
    prefix = find_prefixes(pipeline).get(pipeline.main)
    if prefix is None or len(pipeline.fields) > 1 or index.columns[pipeline.main].span(0) is None:
        return None
    rows = np.unique(np.linspace(0, len(index) - 1, _SAMPLES).astype(np.int64))
    first = keep_first_steps(config, len(prefix.entries))
    with create_loader(first, index.subset(rows)) as loader:
        sizes = [batch[pipeline.main].numel() for batch in loader]
    if not sizes:
        return None
    candidate = CacheCandidate(len(index), float(np.mean(sizes)))
    return candidate if candidate.needed_bytes <= _MAX_SHARE * free_shared_memory() else None


def nest_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nest settings as in a config: {"prefetch": 2} becomes {"loader": {"prefetch": 2}}."""
    nested: dict[str, Any] = {}
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        nested.setdefault(section or "loader", {})[key] = (
            dict(value) if isinstance(value, Mapping) else value
        )
    return nested
