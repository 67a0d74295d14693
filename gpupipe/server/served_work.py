"""The served work: the loader whose batches are sent, its description for clients, the plans of
every pass, and the sessions that a state file keeps.

The plans have the loader's order, for any rank and from any position.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gpupipe.config import Config, Shard
from gpupipe.dataset.index import Index
from gpupipe.dataset.population import Growing
from gpupipe.engines.base import Engine
from gpupipe.engines.remote.description import describe, split_pipeline
from gpupipe.errors import ServerError
from gpupipe.loader import Loader, open_loader
from gpupipe.loading.assembly import create_sampler
from gpupipe.loading.sample_selection import select_samples
from gpupipe.protocol import codec, messages
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.server.options import ServerOptions
from gpupipe.server.sessions import Sessions
from gpupipe.server.write_ahead_log import WriteAheadLog

_MAX_CACHED_PASSES = 4
Identity = tuple[int, int, int, int]
"""Identity of a batch: (rank, epoch, position at which the pass starts, step).

Batches of the same identity have the same content. The identity is the `tag` of the plan that the
engine gets, and stays the same if the engine skips samples.
"""


def prepare_loader(loader: Loader, options: ServerOptions) -> tuple[Loader, dict[str, Any]]:
    """Return the loader whose batches are sent, and its description for clients.

    With `ship: uint8`, close `loader` and return a new one without the steps that clients run.

    Raises:
        ServerError: This loader cannot be served, or its description is too long.
    """
    if isinstance(loader.config.source, Growing):
        raise ServerError(
            f"data.source: {loader.config.source_name} has other samples in every epoch, "
            "which a server cannot deal out: load it where it is trained on; "
            "its workers, 'gpupipe cache fill', may run on another machine"
        )
    if not isinstance(loader.engine, Engine):
        raise ServerError(
            "what a server serves cannot be served again: connect to the server itself, or "
            "serve the config where its data is"
        )
    served_loader = loader
    tail: tuple[int, ...] = ()
    if options.ship == "uint8":
        config, tail = split_pipeline(loader.config)
        loader.close()
        served_loader = open_loader(config)
    description = describe(loader.config, loader.index, tail, loader.sampler)
    description["mode"] = options.mode
    size = len(codec.encode(messages.Stats(description)))
    if size > codec.MESSAGE_LIMIT // 2:
        raise ServerError(
            f"what is served takes {size:,} bytes to say (its class names, most likely), "
            f"and {codec.MESSAGE_LIMIT // 2:,} is the limit"
        )
    return served_loader, description


class Plans:
    """Computes the plans of a server: divides the server's samples among its partitions.

    Args:
        config: The served config. Its shard is the part of the samples that this server has.
        index: Index of the samples.
        ranks: Number of partitions to divide the shard among.

    Attributes:
        world_size: Number of ranks over all servers.
        of_pass: Called with (rank, epoch, position), returns the plans of that pass in the order of
            steps. Raises StateError if there is no such position.

    Raises:
        ConfigError: The samples cannot be divided among so many ranks.
    """

    def __init__(self, config: Config, index: Index, ranks: int) -> None:
        shard = config.loader.shard
        self.world_size = shard.world_size * ranks
        self._first = shard.rank * ranks
        self.of_pass = lru_cache(_MAX_CACHED_PASSES * ranks)(self._plan_pass)
        selection = select_samples(config, index)
        self._samplers: list[Sampler] = []
        for rank in range(ranks):
            part = Shard(rank=self.global_rank(rank), world_size=self.world_size)
            of_rank = replace(config, loader=config.loader.model_copy(update={"shard": part}))
            self._samplers.append(create_sampler(of_rank, index, selection=selection))

    def global_rank(self, rank: int) -> int:
        """Return the rank of a partition among those of all servers."""
        return self._first + rank

    def _plan_pass(self, rank: int, epoch: int, position: int) -> Sequence[Plan]:
        sampler = self._samplers[rank]
        sampler.load_state(sampler.state() | {"epoch": epoch, "position": position})
        return list(sampler.begin())

    def count_steps(self, rank: int, epoch: int, position: int) -> int:
        """Return the number of steps of a pass. Raises StateError if the position is invalid."""
        return len(self.of_pass(rank, epoch, position))

    def plan(self, identity: Identity) -> Plan:
        """Return the plan of a batch, with the identity as its tag."""
        rank, epoch, position, step = identity
        return replace(self.of_pass(rank, epoch, position)[step], tag=identity)


def open_sessions(
    loader: Loader,
    options: ServerOptions,
    plans: Plans,
    description: Mapping[str, Any],
    exits: ExitStack,
) -> tuple[Sessions, WriteAheadLog | None, bool]:
    """Open and lock the state file, and restore the sessions, passes and leases from it.

    Args:
        loader: The loader whose batches are served.
        options: The options of the server.
        plans: The plans of all passes.
        description: The description for clients, of the whole pipeline.
        exits: Closes the state file.

    Returns:
        (sessions, state file or None for a server that keeps no state, whether the server resumes).

    Raises:
        ServerError: The state file cannot be written, or another server uses it.
        StateError: The state file belongs to other data, another pipeline or other options, or is
            damaged.
    """
    first = loader.sampler.epoch, loader.sampler.position
    if options.state is None:
        return Sessions(options, plans.count_steps, first), None, False
    pipeline = description["pipeline"]["fingerprint"]
    wal = WriteAheadLog(options.state, _identify_work(loader, options, pipeline))
    exits.callback(wal.close)
    sessions = Sessions(options, plans.count_steps, first, wal.log)
    if options.fresh:
        wal.forget()
    return sessions, wal, wal.resume(sessions.state, time.monotonic(), options.resume)


def _identify_work(loader: Loader, options: ServerOptions, pipeline: str) -> dict[str, Any]:
    """Return the settings of the served work. A server resumes only if the state file has the same.

    `pipeline`: fingerprint of the whole pipeline.
    """
    config = loader.config
    batch = config.batch.fingerprint
    order = {"batch_size", "shuffle", "seed", "last_batch", "shard"}
    return {
        "data": loader.index.fingerprint,
        "pipeline": pipeline,
        **({"batch": batch} if batch else {}),
        **config.loader.model_dump(mode="json", include=order),
        **loader.sampler.selection.settings,
        "mode": options.mode,
        "clients": options.clients,
    }
