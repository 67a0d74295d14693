"""Creates the parts of a loader, for the rank of this process.

`resolve` replaces `auto` in a config by this process's values; load() and all commands call it.
`assemble` creates the sampler and the engine of a loader that reads the data itself. `connect`
connects to data processing servers, which read the data and decide the order.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch_stage.mixer import check_labels
from gpupipe.config import AutoShard, Config, LoaderConfig, Shard, locate_errors
from gpupipe.dataset.index import Index
from gpupipe.dataset.population import Growing, Population
from gpupipe.engines import registry
from gpupipe.engines.base import NO_LABEL_IN_TUPLE, BatchStream, Engine, Job
from gpupipe.errors import ConfigError, EngineError, GpupipeError
from gpupipe.loading.first_sample import check_first_sample
from gpupipe.loading.listed_files import check_sample_of_files
from gpupipe.loading.sample_selection import select_samples
from gpupipe.runtime.ranks import cores_of_rank, rank_and_world
from gpupipe.sampling.sampler import Sampler
from gpupipe.sampling.selection import Selection

_LABEL = "label"
"""The field of labels that are read with their samples."""


@dataclass(frozen=True)
class ResolvedConfig:
    """A config, with this process's values in place of `auto`.

    Attributes:
        config: The config, with the rank and world size of this process.
        engine: The class of the engine.
        threads: How many CPU threads the engine may use.
    """

    config: Config
    engine: type[BatchStream]
    threads: int

    @property
    def reads_data(self) -> bool:
        """Whether the engine reads the data here, instead of connecting to servers."""
        return issubclass(self.engine, Engine)


def resolve(config: Config) -> ResolvedConfig:
    """Replace `auto` in a config by the values for this machine and the rank of this process.

    Raises:
        DeviceError: A package that the engine needs is not installed, or the environment variables
            of the launcher contradict each other.
        EngineError: There is no such engine, or its package is broken.
        ServerError: A package that connecting to a server needs is not installed.
    """
    loader = config.loader
    engine = registry.choose(loader.engine, loader.device, config.pipeline)
    config = replace(config, loader=resolve_shard(loader))
    return ResolvedConfig(config, engine, count_threads(loader))


@dataclass(frozen=True)
class LoaderParts:
    """The parts of a loader.

    Attributes:
        config: The configuration, with the rank and world size of the loader.
        index: The samples.
        sampler: The order of the samples.
        engine: Delivers the batches.
        population: The samples of each epoch, if the source grows.
    """

    config: Config
    index: Index
    sampler: Sampler
    engine: BatchStream
    population: Population | None = None


@runtime_checkable
class HoldsFiles(Protocol):
    """An engine that keeps files of the data set open or mapped into memory."""

    def unmap_files(self, files: set[int]) -> None:
        """Unmap files that are about to be removed or replaced.

        May be called after `close`.

        Args:
            files: The positions of the files in SpanColumn.files.
        """


def resolve_shard(options: LoaderConfig) -> LoaderConfig:
    """Return the settings with `shard: auto` replaced by the actual rank and world size.

    Raises:
        DeviceError: If the environment variables of the launcher contradict each other.
    """
    if not isinstance(options.shard, AutoShard):
        return options
    rank, world_size = rank_and_world()
    return options.model_copy(update={"shard": Shard(rank=rank, world_size=world_size)})


def count_threads(options: LoaderConfig) -> int:
    """Return how many CPU threads an engine may use."""
    return cores_of_rank() if options.threads == "auto" else options.threads


def create_sampler(
    config: Config,
    index: Index,
    population: Population | None = None,
    selection: Selection | None = None,
) -> Sampler:
    """Create the sampler that a config describes.

    Args:
        config: The config. Its shard must be a rank and a world size, not `auto`.
        index: The samples.
        population: The samples of each epoch; None if every epoch has all samples.
        selection: Which samples an epoch has, and how often; None takes it from the config.

    Raises:
        ConfigError: If the samples cannot be split into equal steps for all ranks, or a setting
            that chooses samples is wrong.
        DataError: If the weights or the file of ids are wrong.
    """
    options = config.loader
    shard = options.shard
    with locate_errors(config, "loader"):
        return Sampler(
            None if index.is_growing else len(index),
            options.batch_size,
            shuffle=options.shuffle,
            seed=options.seed,
            last_batch=options.last_batch,
            rank=shard.rank,
            world_size=shard.world_size,
            population=population,
            selection=select_samples(config, index) if selection is None else selection,
        )


def find_labels(config: Config, index: Index) -> NDArray[np.int64]:
    """Return the label of each sample, int64 (N,); none, (0,), if samples are read with theirs."""
    return index.labels[:0] if _LABEL in config.pipeline.fields else index.labels


def assemble(resolved: ResolvedConfig, index: Index) -> LoaderParts:
    """Create the parts of a loader that reads the data itself.

    Args:
        resolved: The config, from `resolve`.
        index: The samples.

    Raises:
        ConfigError: If the samples cannot be split over the ranks, or their labels cannot be mixed.
        DataError: If files that a list names are missing.
        DeviceError: If the device or engine is not available.
        EngineError: If the engine cannot be built, or does not support data.cache_decoded.
        StepError: If a function of the user's fails on the first sample.
        GpupipeError: If this process is a worker of a DataLoader.
    """
    refuse_in_worker()
    config, engine_type = resolved.config, resolved.engine
    assert issubclass(engine_type, Engine)
    options, shard, traits = config.loader, config.loader.shard, engine_type.traits
    if traits.reads_elsewhere:
        index = config.source.read_through(index)
    if config.batch.entries:
        check_labels(config.batch, index.classes, find_labels(config, index))
    if options.format == "tuple" and not index.has_labels and _LABEL not in config.pipeline.fields:
        raise ConfigError.at("loader.format", NO_LABEL_IN_TUPLE)
    job = Job(
        index,
        config.pipeline,
        options.model_copy(update={"collate": None}),  # it may be no object that can be pickled
        resolved.threads,
        config.source.max_pixels,
        config.source.cache_decoded,
    )
    if job.cache_decoded is not None and not traits.keeps_decoded:
        raise EngineError(
            f"data.cache_decoded: engine {engine_type.name} keeps no decoded images: write "
            "engine: cpu, or remove cache_decoded"
        )
    engine: Engine | None = None

    def unmap_files(files: set[int]) -> None:
        if isinstance(engine, HoldsFiles):
            engine.unmap_files(files)

    population = None
    if isinstance(config.source, Growing) and not traits.reads_elsewhere:
        population = config.source.population(
            index, shard.rank, shard.world_size, options.seed, unmap_files
        )
    try:
        sampler = create_sampler(config, index, population)
        if not traits.reads_elsewhere:
            check_sample_of_files(config, index, sampler.selection)
            check_first_sample(job)
        engine = engine_type.on(job, options.device)
    except BaseException:
        if population is not None:
            population.close()
        raise
    return LoaderParts(config, index, sampler, engine, population)


def refuse_in_worker() -> None:
    """Raise GpupipeError if this process is a worker of a DataLoader."""
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:
        raise GpupipeError(
            "load() was called in a worker of a DataLoader, where it would start threads "
            "and processes of its own: use the loader in its place"
        )


@runtime_checkable
class Connects(Protocol):
    """The class of an engine that connects to servers, instead of reading the data itself."""

    def connect(
        self, loader: LoaderConfig, patience: float, own: Config | None
    ) -> tuple[BatchStream, Config, Index, Sampler]:
        """Connect to servers, and open a session with each. A class method.

        Args:
            loader: Settings of this side, which name the servers.
            patience: A call fails after this many seconds without a message from a server.
            own: This side's config, whose pipeline and batch stage must equal those of the servers.
                None: no check.

        Returns:
            The engine; the config of the servers, with the shard of this side; the samples that the
            servers serve; and the sampler, which keeps the position in the servers' order.

        Raises:
            DeviceError: The device is not available.
            ServerError: A server cannot be reached, or serves another pipeline than `own`.
        """


def connect(
    engine_type: type[BatchStream],
    options: LoaderConfig,
    own: Config | None = None,
    patience: float = 60.0,
) -> LoaderParts:
    """Connect to servers, and return the parts of a loader over them.

    Args:
        engine_type: The class of the engine, which must implement Connects.
        options: Settings of this side, which name the servers.
        own: This side's config, whose pipeline and batch stage must equal those of the servers.
            None: no check.
        patience: A call fails after this many seconds without a message from a server.

    Raises:
        ConfigError: If the labels of the servers cannot be mixed.
        DeviceError: If the device is not available.
        EngineError: If the engine reads the data itself.
        ServerError: If a server cannot be reached, or serves another pipeline than `own`.
    """
    refuse_in_worker()
    if not isinstance(engine_type, Connects):
        raise EngineError(f"engine {engine_type.name} reads the data itself, and has no server")
    shard = resolve_shard(options)
    engine, config, index, sampler = engine_type.connect(shard, patience, own)
    check_labels(config.batch, index.classes, None)  # only the servers know the labels
    return LoaderParts(config, index, sampler, engine)
