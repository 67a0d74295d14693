"""The plans of every run: the order that a loader has, of any rank, from any place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpupipe.config import Config, Shard
from gpupipe.dataset.index import Index
from gpupipe.loader import sampler_of
from gpupipe.sampling.sampler import Plan, Sampler

_KEPT = 4
Identity = tuple[int, int, int, int]
"""Of a batch: rank, epoch, position at which the run began, step.

Two runs with one identity have one content.
"""


@dataclass(frozen=True)
class Asked(Plan):
    """A plan that is to be made, with its identity, which it keeps where samples are left out of
    it.
    """

    identity: Identity


class Plans:
    """For a config whose shard is dealt out further to `ranks` lanes."""

    def __init__(self, config: Config, index: Index, ranks: int) -> None:
        """Raises ConfigError where the samples cannot be dealt out so."""
        shard = config.loader.shard
        self.world = shard.world_size * ranks
        self._first = shard.rank * ranks
        self._samplers = [self._sampler(config, index, rank) for rank in range(ranks)]
        self._runs: dict[tuple[int, int, int], Sequence[Plan]] = {}

    def _sampler(self, config: Config, index: Index, rank: int) -> Sampler:
        loader = config.loader.model_copy(
            update={"shard": Shard(rank=self.global_rank(rank), world_size=self.world)}
        )
        return sampler_of(replace(config, loader=loader), index)

    def global_rank(self, rank: int) -> int:
        """Of a lane, among those of all servers."""
        return self._first + rank

    def of(self, rank: int, epoch: int, position: int) -> Sequence[Plan]:
        """The plans of a run. Raises StateError."""
        key = rank, epoch, position
        if key not in self._runs:
            sampler = self._samplers[rank]
            sampler.load_state(sampler.state() | {"epoch": epoch, "position": position})
            self._runs[key] = list(sampler.begin())
            for old in list(self._runs)[: -_KEPT * len(self._samplers)]:
                del self._runs[old]
        return self._runs[key]

    def steps(self, rank: int, epoch: int, position: int) -> int:
        return len(self.of(rank, epoch, position))

    def asked(self, identity: Identity) -> Asked:
        rank, epoch, position, step = identity
        plan = self.of(rank, epoch, position)[step]
        return Asked(plan.epoch, plan.ids, plan.end, plan.last, identity)
