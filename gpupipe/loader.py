"""load() turns a config into a Loader, which delivers epochs of batches.

A Loader joins three parts: a sampler decides the order, an engine makes the batches, and the
loader keeps track of what was delivered, for state_dict(). Start reading at `load`, then
`Loader._epoch`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from gpupipe import config as configs
from gpupipe.config import AutoShard, Config, LoaderConfig, Shard
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Population, Progress, quiet
from gpupipe.engines import registry
from gpupipe.engines.base import Engine, LoadSpec, without_effect
from gpupipe.errors import (
    EngineError,
    GpupipeError,
    StandInWarning,
    StateError,
    UsageError,
    short,
    shown,
    warn,
)
from gpupipe.runtime.devices import cores_of_rank
from gpupipe.runtime.ranks import rank_and_world
from gpupipe.runtime.transfer import to_device
from gpupipe.sampling.sampler import Plan, Sampler

if TYPE_CHECKING:
    from torch import Tensor

_STATE_VERSION = 1
_TAKES = "load_state_dict() takes the dict that state_dict() of a loader returned"
_STATE_TYPES = {"version": int, "data": str, "pipeline": str, "seed": int, "shuffle": bool}
_ENDED = "a newer iter() of the same loader, by load_state_dict() or by close()"


def load(
    config: str | Path | Mapping[str, Any] | Config,
    *overrides: str,
    progress: Progress = quiet,
    **changes: Any,
) -> Loader:
    """Create a Loader from a config.

    Issues StandInWarning if drawn images replace a data set that could not be fetched. Logs each
    setting of the config that has no effect.

    Args:
        config: Path of a YAML file, a shipped name such as "lfw", a dict of the same shape, or a
            Config that was read already; overrides and changes do not apply to the last.
        *overrides: Texts "key=value", as on the command line: "loader.batch_size=64".
        progress: Called with (action, done, total) while the samples are indexed or fetched; total
            is None if it is not known. By default nothing is shown.
        **changes: Overrides as keyword arguments: batch_size=64, data={"root": "/images"}.

    Returns:
        The loader. Close it, or use it as a context manager.

    Raises:
        ConfigError: If the config is wrong, or the samples cannot be split over the ranks.
        DataError: If there is nothing to read.
        DeviceError: If the device or engine is not available.
        EngineError: If the engine cannot be built.
        FetchError: If the data set could not be downloaded.
        ServerError: If the config names a server that cannot be reached.
        GpupipeError: In a worker process of a DataLoader.

    Example:
        >>> with gpupipe.load("lfw", batch_size=64) as loader:
        ...     for batch in loader:
        ...         batch["image"]  # float32 (64, 3, 250, 250), on the loader's device
        ...         batch["label"]  # int64 (64,), on the loader's device
    """
    checked = config if isinstance(config, Config) else configs.read(config, overrides, **changes)
    return warned(quietly(checked, progress))


def quietly(config: Config, progress: Progress = quiet) -> Loader:
    """Do what load() does, without its StandInWarning.

    For callers that print `index.note` themselves.
    """
    loader = _open(config, progress)
    for line in [*ignored_settings(config), *_overruled(config, loader)]:
        _log_once(line)
    return loader


def _open(config: Config, progress: Progress) -> Loader:
    if registry.find(config.loader.engine).reads_data:
        return Loader(config, config.source.index(progress))
    return connected(config.loader, config)


def ignored_settings(config: Config) -> list[str]:
    """Return a line for each setting of the config that the engine in use ignores."""
    engine = registry.find(config.loader.engine)
    return without_effect(engine, config.loader, Loader.settings)


def _overruled(config: Config, loader: Loader) -> Iterator[str]:
    """Yield a line for each setting of this side that the server overrules."""
    own, used = config.loader, loader.config.loader
    for name in sorted(own.model_fields_set & loader.engine.overruled_settings):
        mine, theirs = getattr(own, name), getattr(used, name)
        if mine != theirs:
            yield f"loader.{name}={shown(mine)} has no effect: the server's is {shown(theirs)}"


@cache
def _log_once(line: str) -> None:
    logging.getLogger("gpupipe").warning(line)


def warned(loader: Loader) -> Loader:
    """Return the loader; issue StandInWarning if its data are not those that were requested."""
    if loader.index.warning:
        warn(loader.index.warning, StandInWarning)
    return loader


def connected(options: LoaderConfig, own: Config | None = None, patience: float = 60.0) -> Loader:
    """Connect to data processing servers, and return a Loader over them.

    Args:
        options: Settings of the loader; `options.engine` connects.
        own: A config whose pipeline must be the one of the servers; None: no check.
        patience: Seconds without a message from a server after which the loader raises ServerError.

    Raises:
        DeviceError: If the device is not available.
        ServerError: If a server cannot be reached, or serves something else.
    """
    _refuse_in_worker()
    engine = registry.find(options.engine)
    if isinstance(options.shard, AutoShard):
        rank, world_size = rank_and_world()
        options = options.model_copy(update={"shard": Shard(rank=rank, world_size=world_size)})
    parts = engine.connect(options, patience, own)
    return Loader(parts.config, parts.index, parts.sampler, parts.engine)


def over(config: Config, index: Index) -> Loader:
    """Create a loader over an index that was built already. Raises what load() raises."""
    if registry.find(config.loader.engine).reads_data:
        return Loader(config, index)
    return connected(config.loader, config)


class Loader:
    """Delivers epochs of batches.

    Each `iter()` is one epoch: the next one, or the rest of one after load_state_dict(). The epoch
    is chosen when its first batch is requested, so `sampler.set_epoch()` may follow `iter()`. Only
    the newest iterator of a loader can be used. After the first epoch `iter()` is cheap: the engine
    prepares the next epoch while this one ends.

    A batch is a dict: the fields of the pipeline, such as "image" (B, C, H, W), further values of
    the data set (B, ...), and "label", int64 (B,). All tensors are on the loader's device. With
    `format: tuple` a batch is (first field, label); with `ids: true` the dict also has "id",
    int64 (B,), the rows of the samples in the index.

    Attributes:
        config: The configuration, with the rank and world size that the loader found.
        index: The table of samples; `len(loader.index)` is the size of the data set.
        sampler: The order of the samples; `sampler.set_epoch(n)` chooses the next epoch.
        engine: What makes the batches.
        threads: CPU threads of the engine.
        as_tuple: Whether a batch is a tuple.
        waited: Seconds that iterations have waited for batches so far.

    Example:
        >>> with gpupipe.load("lfw") as loader:
        ...     for epoch in range(10):
        ...         for batch in loader:
        ...             train(batch["image"], batch["label"])
    """

    settings = frozenset({"engine", "device", "shard", "format", "ids"})
    """Settings of `loader` that the loader itself uses, with every engine."""
    batch_sampler = None
    """Always None: Lightning reads this attribute of any loader that has a `sampler`."""

    def __init__(
        self,
        config: Config,
        index: Index,
        sampler: Sampler | None = None,
        engine: Engine | None = None,
    ) -> None:
        """Create a loader; users call load() instead.

        Args:
            config: The configuration.
            index: The samples.
            sampler: Replaces the sampler that the config describes.
            engine: Replaces the engine that the config describes.

        Raises:
            ConfigError: If the samples cannot be split over the ranks.
            DeviceError: If the device or engine is not available.
            EngineError: If the engine cannot be built.
            GpupipeError: In a worker process of a DataLoader.
        """
        _refuse_in_worker()
        config = with_ranks(config)
        self.config, self.index = config, index
        self.waited = 0.0
        self._process = os.getpid()
        self._identity = {
            "version": _STATE_VERSION,
            "data": index.fingerprint,
            "pipeline": config.pipeline.fingerprint,
        }
        options = config.loader
        self.threads = cores_of_rank() if options.threads == "auto" else options.threads
        self._population: Population | None = None
        if sampler is None:
            sampler_of(config, index)  # Raises ConfigError before the engine starts anything.
        if engine is None:
            engine = _engine(
                LoadSpec(index, config.pipeline, options, self.threads, config.source.max_pixels)
            )
            shard = options.shard
            self._population = config.source.population(
                index, shard.rank, shard.world_size, options.seed, engine.unmap_files
            )
        self.engine = engine
        self.sampler = sampler_of(config, index, self._population) if sampler is None else sampler
        self.as_tuple = options.format == "tuple"
        self._running: Generator[tuple[Plan, dict[str, Tensor]], None, None] | None = None
        self._closed = False
        self._iteration = 0
        self._ready_for: tuple[int, int] | None = None
        """Epoch and position that `_running` delivers next; None in the middle of an epoch."""
        self._held: tuple[Plan, dict[str, Tensor]] | None = None
        """A batch that was taken from `_running` too early, and belongs to the next iteration."""
        self._last: Plan | None = None
        """Plan of the batch that the consumer has; None between epochs."""
        self._state_at_start: dict[str, Any] | None = None
        """State of the sampler at the start of this iteration, until its end."""

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch on this rank."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch. Older iterators of this loader raise GpupipeError from now on.

        Raises:
            GpupipeError: If the loader is closed, or this process was forked from the loader's.
        """
        if self._closed:
            raise GpupipeError("this loader is closed: load() another")
        if os.getpid() != self._process:
            raise GpupipeError(
                f"this loader belongs to process {self._process}, and cannot be used in one "
                "that was forked from it: load() it there"
            )
        self._acknowledge_last_batch()
        self._iteration += 1
        return self._epoch(self._iteration)

    def _epoch(self, iteration: int) -> Iterator[Any]:
        """Yield the batches of one epoch; the engine meanwhile prepares the epochs after it."""
        self._check_current(iteration)
        epoch, last = self._begin(), False
        while not last:
            self._check_current(iteration)
            following = self._next()
            if following is None or following[0].epoch != epoch:
                # Every sample of the last batches of this epoch was skipped.
                self._held = following
                break
            plan, batch = following
            if self._population is not None and self._last is None:
                self._population.release(epoch.__le__)
            self._last, last = plan, plan.last
            if last:
                self._ready_for = (epoch + 1, 0)
            try:
                yield self._format_batch(batch)
            finally:
                self.engine.mark_consumed(plan)
        if iteration == self._iteration:
            self._ready_for = (epoch + 1, 0)
            self._last = self._state_at_start = None

    def _begin(self) -> int:
        """Start the sampler's next epoch, on the running engine if possible. Returns its number."""
        epoch, self._state_at_start = self.sampler.epoch, self.sampler.state()
        if self._ready_for != (epoch, self.sampler.position) or not self._has_next():
            self._stop()
            if self._population is not None:
                self._population.release(epoch.__eq__)
            self._running = self.engine.batches(self.sampler.plans_ahead())
        self._ready_for = None
        self.sampler.begin()
        return epoch

    def _check_current(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise GpupipeError(
                f"this iteration was ended by {_ENDED}: load() a second loader to run two at once"
            )

    def _has_next(self) -> bool:
        """Return whether the running engine delivers the next epoch too.

        It stops before an epoch of a growing source that was not ready when the engine requested
        its plans.
        """
        if self._population is not None and self._held is None:
            self._held = self._next()
        return self._population is None or self._held is not None

    def _next(self) -> tuple[Plan, dict[str, Tensor]] | None:
        """Return the next plan with its batch; None if the engine has no more."""
        if self._held is not None:
            held, self._held = self._held, None
            return held
        assert self._running is not None
        started = time.perf_counter()
        following = next(self._running, None)
        self.waited += time.perf_counter() - started
        if following is None and self._population is None:
            raise EngineError(
                f"{self.engine.name} ended before the epoch did; this is a mistake in the "
                "engine: please report it"
            )
        return following

    def _format_batch(self, batch: dict[str, Tensor]) -> Any:
        if self.as_tuple:
            return batch[self.config.pipeline.main], batch["label"]
        ids = batch.pop("id")
        if self.config.loader.ids:
            batch["id"] = to_device(ids, batch["label"].device)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch that was delivered last, as plain JSON.

        Prefetched batches do not count.

        Returns:
            A dict for load_state_dict(), of plain values: fingerprints of data and pipeline,
            seed, shuffle, epoch and position (samples of the epoch delivered over all ranks).
        """
        position = (
            self.sampler.state_after(self._last)
            if self._last
            else self._state_at_start or self.sampler.state()
        )
        return self._identity | position

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continue where a state was taken: the next iteration delivers the rest of that epoch.

        The batch size and the number of ranks may differ from those of the state.

        Args:
            state: What state_dict() of a loader returned.
            strict: If true, the state must belong to the same data, pipeline, seed and shuffle. If
                false, the epoch continues at the same position in this loader's own order.

        Raises:
            StateError: If the state does not fit this loader, or is no state.
        """
        _check_state(state, self.state_dict(), strict)
        self._end_iteration()
        self.sampler.load_state(dict(state), strict)

    def close(self) -> None:
        """End all iterations, and free threads, processes and memory. Idempotent.

        After this `iter()` raises GpupipeError.
        """
        self._end_iteration()
        self._closed = True
        self.engine.close()
        if self._population is not None:
            self._population.close()

    def _end_iteration(self) -> None:
        self._acknowledge_last_batch()
        self._stop()
        self._iteration += 1

    def _acknowledge_last_batch(self) -> None:
        """Tell the engine that the consumer is done with the batch that was delivered last."""
        if self._last is not None:
            self.engine.mark_consumed(self._last)
        self._last = self._state_at_start = None

    def _stop(self) -> None:
        """Cancel all batches in flight."""
        if self._running is not None:
            self._running.close()
        self._running = self._held = self._ready_for = None

    def __repr__(self) -> str:
        index, sampler, engine = self.index, self.sampler, self.engine
        pipeline = self.config.pipeline
        # The size of an epoch of a growing source is not known before the epoch starts.
        grows = sampler.population is not None
        ranks = f", rank {sampler.rank} of {sampler.world_size}" if sampler.world_size > 1 else ""
        batches = f"up to {sampler.batch_size:,} samples"
        state = self.state_dict()
        stands = f"epoch {state['epoch']}, {state['position']:,}"
        steps = ", ".join(dict.fromkeys(e.key for e in pipeline.entries))
        facts = {
            "batches": f"of {batches}" if grows else f"{len(self):,} an epoch, of {batches}{ranks}",
            "pipeline": f"{pipeline.name} ({steps})",
            "engine": f"{engine.name} on {engine.device}, {engine.parallelism_with_unit}",
            "stands at": f"{stands}{'' if grows else f' of {len(index):,}'} samples delivered",
        }
        closed = " (closed)" if self._closed else ""
        head = f"<gpupipe.Loader {self.config.name}: {index.summary}{closed}>"
        return "\n".join([head, *(f"  {name + ':':11}{fact}" for name, fact in facts.items())])

    def __reduce__(self) -> NoReturn:
        """Raise UsageError: a loader cannot be pickled or copied."""
        raise UsageError(
            "a Loader cannot be pickled or copied, since it holds threads, processes and memory: "
            "pass its config and its state_dict() on, and load() and load_state_dict() there"
        )

    def __getitem__(self, item: object) -> NoReturn:
        """Raise UsageError: a loader has batches, no single samples."""
        raise UsageError(
            "a Loader is no data set, and has no samples to ask for one by one: it makes batches "
            "itself. Iterate over it in the place of DataLoader(loader): for batch in loader"
        )

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_state(state: object, own: Mapping[str, Any], strict: bool) -> None:
    if not isinstance(state, Mapping):
        actual = "None" if state is None else f"a {type(state).__name__}"
        raise StateError(f"{_TAKES}, and not {actual}")
    missing = [key for key in own if key not in state]
    if missing:
        keys = ", ".join(repr(key) for key in state)
        contents = f"that has {short(keys)}" if keys else "that is empty"
        raise StateError(f"{_TAKES}, and not one {contents}: it lacks {missing[0]!r}")
    for key, kind in _STATE_TYPES.items():
        if type(state[key]) is not kind:
            raise StateError(f"{_TAKES}, and not one whose {key!r} is {short(repr(state[key]))}")
    if state["version"] != _STATE_VERSION:
        versions = f"{state['version']}, not {_STATE_VERSION}"
        raise StateError(f"the state is of another version of gpupipe: {versions}")
    if not strict:
        return
    for key, difference in (
        ("data", "other data (the paths or labels differ)"),
        ("pipeline", "another pipeline (its steps or their parameters differ)"),
    ):
        if state[key] != own[key]:
            raise StateError(
                f"the state belongs to {difference}: {key} {state[key]} there, {own[key]} here; "
                "strict=False goes on all the same"
            )


def with_ranks(config: Config) -> Config:
    """Return the config with `shard: auto` replaced by the actual rank and world size.

    Raises:
        DeviceError: If the environment of the launcher contradicts itself.
    """
    if not isinstance(config.loader.shard, AutoShard):
        return config
    rank, world_size = rank_and_world()
    return replace(
        config,
        loader=config.loader.model_copy(update={"shard": Shard(rank=rank, world_size=world_size)}),
    )


def _refuse_in_worker() -> None:
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:
        raise GpupipeError(
            "load() was called in a worker of a DataLoader, where it would start threads "
            "and processes of its own: use the loader in its place"
        )


def sampler_of(config: Config, index: Index, population: Population | None = None) -> Sampler:
    """Create the sampler that a config describes.

    Args:
        config: The config; its shard names a rank.
        index: The samples.
        population: The samples of each epoch; None if they are always all samples.

    Raises:
        ConfigError: If the samples cannot be split into equal steps for all ranks.
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
    )


def _engine(job: LoadSpec) -> Engine:
    return registry.find(job.loader.engine).on(job, job.loader.device)
