"""Ray Data integration: the samples of a config as a `ray.data.Dataset`.

`dataset()` indexes the samples and chooses their order in this process. The actors of Ray Data's
pool then read and transform the samples with gpupipe's engines, on any node of the cluster. To
train on a Ray cluster, use `load()` with `engine: ray`, or with any other engine inside a Ray Train
worker function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe import config as configs
from gpupipe.config import AutoShard, Config, Shard
from gpupipe.dataset.index import Index
from gpupipe.dataset.population import Growing
from gpupipe.engines import registry
from gpupipe.engines.base import Engine, Job
from gpupipe.errors import ConfigError, EngineError, GpupipeError, Problem, counted, warn
from gpupipe.loading.assembly import create_sampler
from gpupipe.runtime.installation import require_extra
from gpupipe.sampling.sampler import Plan

if TYPE_CHECKING:
    from ray.data import Dataset

    from gpupipe.engines.ray.cluster import Cluster

_MAX_BATCHES = 4
"""The maximum number of batches in one task of an actor.

The engine reads the next batch while it runs the steps of the current one.
"""
_MIN_TASKS = 16
"""The minimum number of tasks, so that several actors have work. If there are fewer batches, each
batch is one task.
"""


def dataset(
    config: str | Path | Mapping[str, Any] | Config, *overrides: str, epoch: int = 0, **changes: Any
) -> Dataset:
    """Return the samples of one epoch as a lazy `ray.data.Dataset`.

    Of the data, this call reads only the index. When the Dataset is consumed, Ray Data's own actor
    pool runs the pipeline of the config. Each sample gets the random draws that load() gives it in
    this epoch. Use the Dataset for batch inference and for offline preprocessing, with
    `map_batches`, `write_parquet` and Ray Data's other methods.

    Ray Data delivers the samples in the order in which its actors finish them. For the order of
    load(), set `ray.data.DataContext.get_current().execution_options.preserve_order = True` first.

    Args:
        config: Path of a YAML file, a shipped name, a dict, or a Config, as for load().
        *overrides: Texts "key=value", as for load().
        epoch: The epoch, from 0, whose order and random draws the samples get.
        **changes: Overrides as keyword arguments, as for load().

    The settings of `loader.ray` apply: `workers` and `cpus` of the actor pool, `engine`, `gpus` and
    `address`. With `workers: auto` the pool grows while there is work and free CPUs. `ship`, `wait`
    and `placement` have no effect.

    Returns:
        A Dataset with a row for each sample and these columns: the fields of the pipeline, such as
        "image" (C, H, W); further values of the data set; "label" and "id", int64. The id is the
        row of the sample in the index.

    Raises:
        ConfigError: If the config is wrong, or has a setting that a Dataset does not support: steps
            on whole batches, a server, a source that grows, or bfloat16.
        DataError: If there is nothing to read.
        EngineError: If Ray is not installed, or there is no cluster at the address.

    Examples:
        >>> samples = gpupipe.ray.dataset("lfw", shuffle=False)
        >>> samples.map_batches(Classifier, concurrency=2).write_parquet("predictions")
    """
    require_extra("ray", ("ray", "pyarrow", "pandas"), "gpupipe.ray.dataset()", EngineError)
    import ray.data

    from gpupipe.engines.ray.cluster import connect

    checked = config if isinstance(config, Config) else configs.read(config, overrides, **changes)
    _check_settings(checked)
    index = configs.build_index(checked)
    if index.warning:
        warn(index.warning, index.warning_category)
    job = _create_job(checked, index)
    settings = job.loader.ray
    _check_cpus(connect(settings.address), settings.cpus)
    return ray.data.from_arrow(_order(checked, index, epoch)).map_batches(
        _Worker,
        batch_size=None,  # one call for each block, which is one table of ids
        fn_constructor_args=(ray.put((job, epoch)),),
        compute=ray.data.ActorPoolStrategy(**_pool_size(settings.workers)),
        num_cpus=settings.cpus,
        num_gpus=settings.gpus or None,
    )


def _create_job(config: Config, index: Index) -> Job:
    """Return the job from which a worker builds its engine."""
    options = config.loader
    cpus, own = options.ray.cpus, options.engine
    settings: dict[str, Any] = {
        "engine": options.ray.engine if own == "ray" else own,
        "device": "gpu:0" if options.ray.gpus else "cpu",
        "threads": cpus,
        "shard": Shard(),
    }
    if options.workers == "auto":  # processes of the engine dataloader
        settings["workers"] = cpus if cpus > 1 else 0
    loader = options.model_copy(update=settings)
    return Job(index, config.pipeline, loader, cpus, config.source.max_pixels)


def _pool_size(workers: str | int | tuple[int, int]) -> dict[str, int]:
    """Return the size of Ray Data's actor pool for a value of `loader.ray.workers`."""
    if isinstance(workers, tuple):
        return {"min_size": workers[0], "max_size": workers[1]}
    return {"min_size": 1} if workers == "auto" else {"size": int(workers)}


def _order(config: Config, index: Index, epoch: int) -> list[Any]:
    """Return an epoch's order as Arrow tables, one per task, with the columns "id" and "repeat".

    The tables have the samples of all ranks, unless the config sets a rank.
    """
    import pyarrow

    options = config.loader
    if isinstance(options.shard, AutoShard):
        options = options.model_copy(update={"shard": Shard()})
    sampler = create_sampler(replace(config, loader=options), index)
    sampler.set_epoch(epoch)
    plans = list(sampler.begin())
    count = min(_MAX_BATCHES, max(1, len(plans) // _MIN_TASKS))
    tasks = [plans[start : start + count] for start in range(0, len(plans), count)]
    return [
        pyarrow.table(
            {
                "id": np.concatenate([plan.ids for plan in task]),
                "repeat": np.concatenate(
                    [np.zeros_like(p.ids) if p.repeats is None else p.repeats for p in task]
                ),
            }
        )
        for task in tasks
    ]


def _check_cpus(cluster: Cluster, cpus: int) -> None:
    """Raise EngineError if no node has enough CPUs for an actor: Ray Data would wait forever."""
    if (largest := int(cluster.largest_node_cpus())) < cpus:
        raise EngineError(
            f"loader.ray.cpus={cpus}: the largest node of the Ray cluster has "
            f"{counted(largest, 'CPU')}: lower cpus, or add a larger node first"
        )


def _check_settings(config: Config) -> None:
    """Raise ConfigError for settings that a Dataset of single samples cannot have."""
    problems = []
    if config.batch.entries:
        steps = ", ".join(entry.key for entry in config.batch.entries)
        problems.append(
            f"batch: {steps}: these steps mix the samples of a batch, and a Dataset has single "
            "samples: leave `batch` out, and mix in map_batches()"
        )
    loader = config.loader
    if not issubclass(registry.choose(loader.engine, loader.device, config.pipeline), Engine):
        problems.append(
            f"loader.engine={config.loader.engine}: a server makes batches for training, and no "
            "Dataset: choose an engine that reads the data, such as engine=auto"
        )
    if isinstance(config.source, Growing):
        problems.append(
            f"data.source={config.source_name}: which samples are here changes during a run, and a "
            "Dataset has a fixed number: choose a source that reads the files themselves"
        )
    if config.loader.dtype == "bfloat16":
        problems.append(
            "loader.dtype=bfloat16: the columns of a Dataset are NumPy's, which has no bfloat16: "
            "set dtype to float16, float32 or uint8"
        )
    if problems:
        raise ConfigError([Problem("gpupipe.ray.dataset()", problem) for problem in problems])


class _Worker:
    """Makes batches of samples in an actor of Ray Data."""

    def __init__(self, job_and_epoch: Any) -> None:
        import ray

        from gpupipe.engines.ray.actor import get_node_name

        job, self._epoch = ray.get(job_and_epoch)
        self._node = get_node_name()
        self._size = job.loader.batch_size
        engine = registry.find_reader(job.loader.engine, job.loader.device, job.pipeline)
        self._engine = engine.on(job, job.loader.device)

    def __call__(self, rows: dict[str, NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the samples of a task, a batch at a time. `rows` has the columns "id" and "repeat".

        Raises:
            GpupipeError: A sample or a step failed. The message names this node.
        """
        from gpupipe.engines.ray.actor import add_node_name

        plan = Plan(self._epoch, rows["id"], 0, False, repeats=rows["repeat"])
        starts = range(0, len(plan.ids), self._size)
        plans = (plan.select(np.arange(n, min(n + self._size, len(plan.ids)))) for n in starts)
        try:
            for _, tensors in self._engine.batches(plans):
                yield {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        except GpupipeError as e:
            raise add_node_name(e, self._node) from e
