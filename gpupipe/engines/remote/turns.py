"""The sampler of a loader over data processing servers: its position in an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpupipe.errors import StateError
from gpupipe.protocol.messages import Key
from gpupipe.sampling.sampler import Plan, Sampler


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


class Turns(Sampler):
    """The sampler of a loader over servers, whose batches come in turn.

    Attributes:
        servers: Number of servers.
        ahead: Servers that have delivered their batch of the current step; 0 between two steps.
        late: Batches left for the first iteration, if this client joins others in the middle of an
            epoch; else None, and None after that iteration.
        asked: Whether the user chose the position of the next iteration, with set_epoch() or
            load_state().
    """

    servers = 1
    ahead = 0
    late: int | None = None
    asked = False
    _has_begun = False

    def __len__(self) -> int:
        return super().__len__() * self.servers if self.late is None else self.late

    @property
    def left(self) -> int:
        if self.late is not None:
            return self.late
        return super().left * self.servers - self.ahead

    def set_epoch(self, epoch: int) -> None:
        before = self.epoch
        super().set_epoch(epoch)
        if self.epoch != before:
            self.ahead = 0
        if self.epoch != before or self.late is not None:
            self.asked, self.late = True, None

    def begin(self) -> Iterator[Plan]:
        self.ahead, self.asked = 0, False
        if self._has_begun:
            self.late = None
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
        self.asked, self.late = True, None
