"""The plans of every pass: the order of a loader, for any rank, from any position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpupipe.config import Config, Shard
from gpupipe.dataset.index import Index
from gpupipe.loading.assembly import create_sampler
from gpupipe.loading.sample_selection import select_samples
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import Selection

_MAX_CACHED_PASSES = 4
Identity = tuple[int, int, int, int]
"""Identity of a batch: (rank, epoch, position at which the pass starts, step).

Batches of the same identity have the same content. It is the `tag` of the plans that the engine
gets, and stays the same if the engine skips samples.
"""


class Plans:
    """The plans of a server, whose shard of the samples is divided among its partitions.

    Args:
        config: The served config; its shard is that of this server among several.
        index: The samples.
        ranks: Number of partitions to divide the shard among.

    Attributes:
        world_size: Number of ranks over all servers.

    Raises:
        ConfigError: The samples cannot be divided among so many ranks.
    """

    def __init__(self, config: Config, index: Index, ranks: int) -> None:
        shard = config.loader.shard
        self.world_size = shard.world_size * ranks
        self._first = shard.rank * ranks
        selection = select_samples(config, index)
        self._samplers = [self._sampler(config, index, selection, rank) for rank in range(ranks)]
        self._passes: dict[tuple[int, int, int], Sequence[Plan]] = {}

    def _sampler(self, config: Config, index: Index, selection: Selection, rank: int) -> Sampler:
        loader = config.loader.model_copy(
            update={"shard": Shard(rank=self.global_rank(rank), world_size=self.world_size)}
        )
        return create_sampler(replace(config, loader=loader), index, selection=selection)

    def global_rank(self, rank: int) -> int:
        """Return the rank of a partition among those of all servers."""
        return self._first + rank

    def of_pass(self, rank: int, epoch: int, position: int) -> Sequence[Plan]:
        """Return the plans of a pass, by step. Raises StateError if there is no such position."""
        key = rank, epoch, position
        if key not in self._passes:
            sampler = self._samplers[rank]
            sampler.load_state(sampler.state() | {"epoch": epoch, "position": position})
            self._passes[key] = list(sampler.begin())
            for old in list(self._passes)[: -_MAX_CACHED_PASSES * len(self._samplers)]:
                del self._passes[old]
        return self._passes[key]

    def steps(self, rank: int, epoch: int, position: int) -> int:
        """Return the number of steps of a pass. Raises StateError as `of_pass` does."""
        return len(self.of_pass(rank, epoch, position))

    def plan(self, identity: Identity) -> Plan:
        """Return the plan of a batch, with the identity as its tag."""
        rank, epoch, position, step = identity
        return replace(self.of_pass(rank, epoch, position)[step], tag=identity)
