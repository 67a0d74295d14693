"""The sampler of a loader over data processing servers: its position in an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.config import Shard
from gpupipe.errors import ServerError, StateError
from gpupipe.protocol.messages import Key, PassInProgress
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import ALL_ONCE, Selection


@dataclass(frozen=True)
class ServerBatch:
    """The `tag` of the plan of a batch that a server made.

    Attributes:
        server: Number of the server, in the order of ranks.
        key: The protocol's key of the batch.
        before: `end` of the previous step: the samples that all servers delivered before this step.
        ahead: Servers that have delivered their batch of this step, this one included; 0 if all
            have.
    """

    server: int
    key: Key
    before: int
    ahead: int


class RemoteSampler(Sampler):
    """The sampler of a loader over servers, whose batches come in turn.

    Args:
        count: The number of samples that the servers use.
        batch_size: Samples per batch and rank.
        shuffle: As in Sampler.
        seed: As in Sampler.
        last_batch: As in Sampler.
        shard: Rank of the first server, and the number of ranks over all servers.
        start: (epoch, position) where the servers are.
        joined: For each server, the pass that this client joins in the middle, or None.
        selection: How often each sample comes; the servers have its rows and weights.

    Attributes:
        servers: Number of servers.
        ahead: Servers that have delivered their batch of the current step; 0 between two steps.
        batches_left: Batches left for the first iteration, if this client joins others in the
            middle of an epoch; else None, and None after that iteration.
        is_explicit: Whether the user chose the position of the next iteration, with set_epoch() or
            load_state().

    Raises:
        StateError: If the servers' position is not valid here.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        last_batch: str,
        shard: Shard,
        start: tuple[int, int],
        joined: Sequence[PassInProgress | None],
        selection: Selection = ALL_ONCE,
    ) -> None:
        super().__init__(
            count,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            last_batch=last_batch,
            rank=shard.rank,
            world_size=shard.world_size,
            selection=selection,
        )
        self.servers, self.ahead = len(joined), 0
        self.batches_left: int | None = None
        self._has_begun = False
        self.load_state(self.state() | {"epoch": start[0], "position": start[1]})
        self.is_explicit = False
        if any(joined):
            whole = super().left
            self.batches_left = sum(server.left if server else whole for server in joined)

    def __len__(self) -> int:
        whole = super().__len__() * self.servers
        return whole if self.batches_left is None else self.batches_left

    @property
    def left(self) -> int:
        if self.batches_left is not None:
            return self.batches_left
        return super().left * self.servers - self.ahead

    def order(self, epoch: int) -> NDArray[np.int64]:
        for setting in ("weights", "subset"):
            if setting in self.selection.settings:
                raise ServerError(
                    f"the order is on the server alone, because of loader.{setting} there: set "
                    "loader.ids=true, and each batch has the ids of its samples"
                )
        return super().order(epoch)

    def set_epoch(self, epoch: int) -> None:
        before = self.epoch
        super().set_epoch(epoch)
        if self.epoch != before:
            self.ahead = 0
        if self.epoch != before or self.batches_left is not None:
            self.is_explicit, self.batches_left = True, None

    def begin(self) -> Iterator[Plan]:
        self.ahead, self.is_explicit = 0, False
        if self._has_begun:
            self.batches_left = None
        self._has_begun = True
        return super().begin()

    def state_after(self, plan: Plan) -> dict[str, Any]:
        tag = plan.tag
        if not isinstance(tag, ServerBatch) or plan.last or not tag.ahead:
            return super().state_after(plan) | self._turn(0)
        return self._state(plan.epoch, tag.before) | self._turn(tag.ahead)

    def state(self) -> dict[str, Any]:
        return super().state() | self._turn(self.ahead)

    def _turn(self, ahead: int) -> dict[str, Any]:
        return {"ahead": ahead} if self.servers > 1 else {}

    def load_state(self, state: dict[str, Any], strict: bool = True) -> None:
        ahead = state.get("ahead", 0)
        if type(ahead) is not int or not 0 <= ahead < self.servers:
            raise StateError(
                f"the state stands between the servers of one step ({ahead} have had their "
                f"turn), and this loader has {self.servers}"
            )
        super().load_state(state, strict)
        self.ahead = ahead
        self.is_explicit, self.batches_left = True, None
