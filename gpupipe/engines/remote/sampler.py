"""The sampler of a loader over data processing servers: its position in an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.config import LoaderConfig
from gpupipe.errors import ServerError, StateError
from gpupipe.protocol.messages import Key, SessionOpened
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import Selection


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
        options: The settings of the loader that the servers decide.
        selection: How often each sample comes; the servers have its rows and weights.
        answers: The answer of each server: where it is, and which pass this client joins.

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
        options: LoaderConfig,
        selection: Selection,
        answers: Sequence[SessionOpened],
    ) -> None:
        super().__init__(
            count,
            options.batch_size,
            shuffle=options.shuffle,
            seed=options.seed,
            last_batch=options.last_batch,
            rank=answers[0].rank,
            world_size=answers[0].world_size,
            selection=selection,
        )
        self.servers, self.ahead = len(answers), 0
        self.batches_left: int | None = None
        self._has_begun = False
        start = {"epoch": answers[0].epoch, "position": answers[0].position}
        self.load_state(self.state() | start)
        self.is_explicit = False
        joined = [answer.joined for answer in answers]
        if any(joined):
            whole = super().left
            self.batches_left = sum(late.left if late else whole for late in joined)

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
