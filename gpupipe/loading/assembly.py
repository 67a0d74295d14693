"""Creates what a loader is made of, for the rank that this process is."""

from __future__ import annotations

from dataclasses import replace

from gpupipe.batch_stage.mixer import BatchMixer
from gpupipe.config import AutoShard, Config, LoaderConfig, Shard
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Population
from gpupipe.engines import registry
from gpupipe.engines.base import Engine, Job, LoaderParts
from gpupipe.errors import EngineError, GpupipeError
from gpupipe.loading.sample_selection import select_samples
from gpupipe.runtime.devices import cores_of_rank
from gpupipe.runtime.ranks import rank_and_world
from gpupipe.sampling.sampler import Sampler
from gpupipe.sampling.selection import Selection


def resolve_shard(options: LoaderConfig) -> LoaderConfig:
    """Return the settings with `shard: auto` replaced by the actual rank and world size.

    Raises:
        DeviceError: If the environment of the launcher contradicts itself.
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
        config: The config; its shard names a rank.
        index: The samples.
        population: The samples of each epoch; None if they are always all samples.
        selection: Which samples an epoch has, and how often; None: as the config says.

    Raises:
        ConfigError: If the samples cannot be split into equal steps for all ranks, or chosen as
            the config says.
        DataError: If the weights or the file of ids are wrong.
    """
    options = config.loader
    shard = options.shard
    return Sampler(
        len(index),
        options.batch_size,
        shuffle=options.shuffle,
        seed=options.seed,
        last_batch=options.last_batch,
        rank=shard.rank,
        world_size=shard.world_size,
        population=population,
        selection=select_samples(config, index) if selection is None else selection,
    )


def create_mixer(config: Config, index: Index) -> BatchMixer:
    """Create what runs the batch stage of a config.

    Raises:
        ConfigError: If the labels of the data cannot be mixed.
    """
    # The index of a server's client has no labels. The server checks its own.
    labels = index.labels if registry.find_for(config).reads_data else None
    return BatchMixer(config.batch, config.loader.seed, index.classes, labels)


def assemble(config: Config, index: Index) -> LoaderParts:
    """Create the parts of a loader that reads the data itself.

    Raises:
        ConfigError: If the samples cannot be split over the ranks, or their labels cannot be mixed.
        DeviceError: If the device or engine is not available.
        EngineError: If the engine cannot be built.
    """
    refuse_in_worker()
    config = replace(config, loader=resolve_shard(config.loader))
    options = config.loader
    engine_type: type[Engine] = registry.find_for(config)
    if engine_type.reads_elsewhere:
        index = config.source.read_through(index)
    # Both raise ConfigError before the engine starts anything.
    selection = create_sampler(config, index).selection
    create_mixer(config, index)
    job = Job(
        index,
        config.pipeline,
        options,
        count_threads(options),
        config.source.max_pixels,
        config.source.cache_decoded,
    )
    if job.cache_decoded is not None and not engine_type.keeps_decoded:
        raise EngineError(
            f"data.cache_decoded: engine {engine_type.name} keeps no decoded images: write "
            "engine: cpu, or remove cache_decoded"
        )
    engine: Engine = engine_type.on(job, options.device)
    shard = options.shard
    population = (
        None
        if engine_type.reads_elsewhere
        else config.source.population(
            index, shard.rank, shard.world_size, options.seed, engine.unmap_files
        )
    )
    sampler = create_sampler(config, index, population, selection)
    return LoaderParts(config, index, sampler, engine, population)


def refuse_in_worker() -> None:
    """Raise GpupipeError in a worker process of a DataLoader."""
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:
        raise GpupipeError(
            "load() was called in a worker of a DataLoader, where it would start threads "
            "and processes of its own: use the loader in its place"
        )
