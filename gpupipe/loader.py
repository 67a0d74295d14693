"""load(config) -> Loader: what users hold."""

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
from gpupipe.engines.base import Engine, LoadSpec, without_effect
from gpupipe.engines.remote.welcome import SETTLED
from gpupipe.errors import (
    DeviceError,
    EngineError,
    GpupipeError,
    StandInWarning,
    StateError,
    UsageError,
    short,
    shown,
    warn,
)
from gpupipe.protocol.keys import import_zmq
from gpupipe.runtime.devices import cores_of_rank
from gpupipe.runtime.ranks import rank_and_world
from gpupipe.runtime.transfer import to_device
from gpupipe.sampling.sampler import Plan, Sampler

if TYPE_CHECKING:
    from torch import Tensor

_STATE_VERSION = 1
_TAKES = "load_state_dict() takes the dict that state_dict() of a loader returned"
_KINDS = {"version": int, "data": str, "pipeline": str, "seed": int, "shuffle": bool}
_ENDED = "a newer iter() of the same loader, by load_state_dict() or by close()"


def load(
    config: str | Path | Mapping[str, Any] | Config,
    *overrides: str,
    progress: Progress = quiet,
    **changes: Any,
) -> Loader:
    """A Loader over a config: a path, a shipped name ("lfw"), or a dict of the same shape.

    overrides: "key=value" as on the command line. changes: the same as keyword arguments
    (batch_size=64, data={"root": ...}). Raises ConfigError, DataError, DeviceError, FetchError.

        with gpupipe.load("lfw", batch_size=64) as loader:
            for batch in loader:
                batch["image"], batch["label"]      # float32 (64, 3, 250, 250) and int64 (64,), on
                the loader's device
    """
    checked = config if isinstance(config, Config) else configs.read(config, overrides, **changes)
    return warned(quietly(checked, progress))


def quietly(config: Config, progress: Progress = quiet) -> Loader:
    """load() without its warning: for callers that print index.note. Raises what load() raises."""
    loader = _open(config, progress)
    for line in [*ignored_settings(config), *_overruled(config.loader, loader.config.loader)]:
        _log_once(line)
    return loader


def _open(config: Config, progress: Progress) -> Loader:
    if config.loader.engine == "remote":
        return remote(config.loader, config)
    return Loader(config, config.source.index(progress))


def ignored_settings(config: Config) -> list[str]:
    """A line for each setting that was set and that the engine in use ignores."""
    engine = import_engine(config.loader.engine)
    return without_effect(engine, config.loader, Loader.settings)


def _overruled(own: LoaderConfig, used: LoaderConfig) -> Iterator[str]:
    """A line for each setting that was set, and is another one at the server."""
    for name in sorted(own.model_fields_set.intersection(SETTLED)):
        mine, theirs = getattr(own, name), getattr(used, name)
        if mine != theirs:
            yield f"loader.{name}={shown(mine)} has no effect: the server's is {shown(theirs)}"


@cache
def _log_once(line: str) -> None:
    logging.getLogger("gpupipe").warning(line)


def warned(loader: Loader) -> Loader:
    """The loader; warns if its data are not those that were asked for."""
    if loader.index.warning:
        warn(loader.index.warning, StandInWarning)
    return loader


def remote(options: LoaderConfig, own: Config | None = None, patience: float = 60.0) -> Loader:
    """A Loader over the data processing servers in `options`. own: a config that must mean the same
    work as theirs; patience: seconds of silence from a server before it counts as gone. Raises
    ServerError, DeviceError.
    """
    _refuse_in_worker()
    import_zmq()
    from gpupipe.engines.remote.engine import reach

    if isinstance(options.shard, AutoShard):
        rank, world_size = rank_and_world()
        options = options.model_copy(update={"shard": Shard(rank=rank, world_size=world_size)})
    reached = reach(options, patience, own)
    return Loader(reached.config, reached.index, reached.sampler, reached.engine)


def over(config: Config, index: Index) -> Loader:
    """A loader whose samples are known already, so that they are not looked for again.

    Raises what load() raises.
    """
    return (
        remote(config.loader, config) if config.loader.engine == "remote" else Loader(config, index)
    )


class Loader:
    """Epochs of batches. Every iteration is a new epoch, or the rest of one after
    load_state_dict(); which one is settled by its first batch.
    """

    settings = frozenset({"engine", "device", "shard", "format", "ids"})
    """Those of `loader:` that are used whatever the engine."""
    batch_sampler = None
    """There is none, and Lightning asks."""

    def __init__(
        self,
        config: Config,
        index: Index,
        sampler: Sampler | None = None,
        engine: Engine | None = None,
    ) -> None:
        """sampler, engine: in place of those that the config asks for.

        Raises ConfigError, DeviceError, EngineError, GpupipeError in a worker of a DataLoader.
        """
        _refuse_in_worker()
        config = with_ranks(config)
        self.config, self.index = config, index
        self.waited = 0.0
        """Seconds that whoever iterates has waited for batches so far."""
        self._process = os.getpid()
        self._identity = {
            "version": _STATE_VERSION,
            "data": index.fingerprint,
            "pipeline": config.pipeline.fingerprint,
        }
        options = config.loader
        self.sampler = sampler_of(config, index) if sampler is None else sampler
        self.threads = cores_of_rank() if options.threads == "auto" else options.threads
        self.engine = (
            engine
            if engine is not None
            else _engine(
                LoadSpec(index, config.pipeline, options, self.threads, config.source.max_pixels)
            )
        )
        self._population = self._populated() if engine is None else None
        self.as_tuple = options.format == "tuple"
        self._running: Generator[tuple[Plan, dict[str, Tensor]], None, None] | None = None
        self._closed = False
        self._iteration = 0
        self._ready_for: tuple[int, int] | None = None
        """The epoch and position at which `_running` stands, where it stands at the beginning of an
        iteration.
        """
        self._held: tuple[Plan, dict[str, Tensor]] | None = None
        self._last: Plan | None = None
        self._before: dict[str, Any] | None = None

    def _populated(self) -> Population | None:
        """What the epochs of a source that grows have."""
        found = self.config.source.population(
            self.index, self.sampler.rank, self.sampler.world_size, self.config.loader.seed
        )
        self.sampler.population = found
        if found is not None:
            found.let_go = self.engine.let_go
        return found

    def __len__(self) -> int:
        """Batches in a whole epoch, on this rank."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """The next epoch; an iteration that is still under way ends with an error when it is asked
        for more.
        """
        if self._closed:
            raise GpupipeError("this loader is closed: load() another")
        if os.getpid() != self._process:
            raise GpupipeError(
                f"this loader belongs to process {self._process}, and cannot be used in one "
                "that was forked from it: load() it there"
            )
        self._let_go()
        self._iteration += 1
        return self._epoch(self._iteration)

    def _epoch(self, iteration: int) -> Iterator[Any]:
        """The batches of an epoch out of the stream, which goes on preparing the epochs that follow
        it.
        """
        self._check_current(iteration)
        epoch, last = self._begin(), False
        while not last:
            self._check_current(iteration)
            following = self._next()
            if (
                following is None or following[0].epoch != epoch
            ):  # the last plans of the epoch were skipped whole
                self._held = following
                break
            plan, batch = following
            if self._population is not None and self._last is None:
                self._population.release(epoch.__le__)
            self._last, last = plan, plan.last
            if last:
                self._ready_for = (epoch + 1, 0)
            try:
                yield self._shaped(batch)
            finally:
                self.engine.consumed(plan)
        if iteration == self._iteration:
            self._ready_for = (epoch + 1, 0)
            self._last = self._before = None

    def _begin(self) -> int:
        """Begin the epoch that the sampler stands at. Returns its number."""
        epoch, self._before = self.sampler.epoch, self.sampler.state()
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
        """Whether the stream goes on: it ends before an epoch whose samples were not all there when
        the engine asked for them.
        """
        if self._population is not None and self._held is None:
            self._held = self._next()
        return self._population is None or self._held is not None

    def _next(self) -> tuple[Plan, dict[str, Tensor]] | None:
        """The next of the stream, or None at its end."""
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

    def _shaped(self, batch: dict[str, Tensor]) -> Any:
        if self.as_tuple:
            return batch[self.config.pipeline.main], batch["label"]
        ids = batch.pop("id")
        if self.config.loader.ids:
            batch["id"] = to_device(ids, batch["label"].device)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, as plain JSON: behind the batch that was delivered last, whatever is
        prefetched.
        """
        place = (
            self.sampler.state_after(self._last)
            if self._last
            else self._before or self.sampler.state()
        )
        return self._identity | place

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Make the next iteration go on where `state` was taken, also with another batch size or
        number of ranks.

        strict: raise StateError where data, pipeline or seed are others; else the epoch goes on
        from the same position in this loader's own order.
        """
        _check_state(state, self.state_dict(), strict)
        self._abandon()
        self.sampler.load_state(dict(state), strict)

    def close(self) -> None:
        """Give back threads and memory; the loader cannot be used afterwards."""
        self._abandon()
        self._closed = True
        self.engine.close()
        if self._population is not None:
            self._population.let_go = lambda files: None
            self._population.close()

    def _abandon(self) -> None:
        self._let_go()
        self._stop()
        self._iteration += 1

    def _let_go(self) -> None:
        """Of the batch that was delivered last."""
        if self._last is not None:
            self.engine.consumed(self._last)
        self._last = self._before = None

    def _stop(self) -> None:
        """Give up what is in flight."""
        if self._running is not None:
            self._running.close()
        self._running = self._held = self._ready_for = None

    def __repr__(self) -> str:
        index, sampler, pipeline = self.index, self.sampler, self.config.pipeline
        grows = sampler.population is not None  # an epoch is then settled when it is asked for
        ranks = f", rank {sampler.rank} of {sampler.world_size}" if sampler.world_size > 1 else ""
        batches = f"up to {sampler.batch_size:,} samples"
        state = self.state_dict()
        stands = f"epoch {state['epoch']}, {state['position']:,}"
        steps = ", ".join(dict.fromkeys(e.key for e in pipeline.entries))
        facts = {
            "batches": f"of {batches}" if grows else f"{len(self):,} an epoch, of {batches}{ranks}",
            "pipeline": f"{pipeline.name} ({steps})",
            "engine": f"{self.engine.name} on {self.engine.device}, {self.engine.crew}",
            "stands at": f"{stands}{'' if grows else f' of {len(index):,}'} samples delivered",
        }
        closed = " (closed)" if self._closed else ""
        head = f"<gpupipe.Loader {self.config.name}: {index.summary}{closed}>"
        return "\n".join([head, *(f"  {name + ':':11}{fact}" for name, fact in facts.items())])

    def __reduce__(self) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(
            "a Loader cannot be pickled or copied, since it holds threads, processes and memory: "
            "pass its config and its state_dict() on, and load() and load_state_dict() there"
        )

    def __getitem__(self, item: object) -> NoReturn:
        """Raises UsageError."""
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
        this = "None" if state is None else f"a {type(state).__name__}"
        raise StateError(f"{_TAKES}, and not {this}")
    missing = [key for key in own if key not in state]
    if missing:
        keys = ", ".join(repr(key) for key in state)
        held = f"that has {short(keys)}" if keys else "that is empty"
        raise StateError(f"{_TAKES}, and not one {held}: it lacks {missing[0]!r}")
    for key, kind in _KINDS.items():
        if type(state[key]) is not kind:
            raise StateError(f"{_TAKES}, and not one whose {key!r} is {short(repr(state[key]))}")
    if state["version"] != _STATE_VERSION:
        versions = f"{state['version']}, not {_STATE_VERSION}"
        raise StateError(f"the state is of another version of gpupipe: {versions}")
    if not strict:
        return
    for key, what in (
        ("data", "other data (the paths or labels differ)"),
        ("pipeline", "another pipeline (its steps or their parameters differ)"),
    ):
        if state[key] != own[key]:
            raise StateError(
                f"the state belongs to {what}: {key} {state[key]} there, {own[key]} here; "
                "strict=False goes on all the same"
            )


def with_ranks(config: Config) -> Config:
    """The config with `shard: auto` settled. Raises DeviceError."""
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


def import_engine(engine: str) -> type[Engine]:
    """The class of an engine, imported: what load() does first.

    Raises DeviceError where DALI is asked for and not installed, ServerError likewise.
    """
    if engine == "remote":
        import_zmq()
        from gpupipe.engines.remote.engine import RemoteEngine

        return RemoteEngine
    if engine != "dataloader":
        try:
            from gpupipe.engines.dali.engine import DaliEngine
        except ModuleNotFoundError as e:
            if not (e.name or "").startswith("nvidia"):
                raise
            if engine == "dali":
                install = (
                    "on Linux: pip install nvidia-dali-cuda120, or nvidia-dali-cuda130 for "
                    "CUDA 13, but not both"
                )
                raise DeviceError(
                    f"NVIDIA DALI is not installed ({install}); 'gpupipe doctor' tells more"
                ) from e
        else:
            return DaliEngine
    from gpupipe.engines.dataloader.engine import DataLoaderEngine

    return DataLoaderEngine


def sampler_of(config: Config, index: Index) -> Sampler:
    """The sampler that a config asks for.

    Raises ConfigError where the samples cannot be dealt out so.
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
    )


def _engine(job: LoadSpec) -> Engine:
    """The engine for a job, on the device that it asks for."""
    engine = import_engine(job.loader.engine)
    return engine.on(job, job.loader.device)
