"""Queries about sessions and partitions: members, start positions, credits, and what to make next.

Only `lane_for` changes anything. leases.py explains the terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpupipe.errors import counted
from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key
from gpupipe.server.client_state import Client, Refusal, Rules
from gpupipe.server.epoch_pass import EpochPass, Partition

_MAX_NAMED, _SILENT_SECONDS = 4, 2.0


class Clients:
    """All sessions and partitions of a server.

    Args:
        rules: Mode, timeouts and limits.
        first: (epoch, position) where partitions begin.

    Attributes:
        clients: Sessions by client token.
        lanes: Partitions by name: the rank, or the client token with `broadcast`.

    """

    def __init__(self, rules: Rules, first: tuple[int, int]) -> None:
        self.rules, self._first = rules, first
        self.clients: dict[str, Client] = {}
        self.lanes: dict[str, Partition] = {}
        if rules.mode == "share":
            for rank in range(rules.count or 1):
                self.lanes[str(rank)] = Partition(str(rank), rank)

    # --- positions and members

    def place(self, client: Client) -> tuple[int, int]:
        """Return (epoch, position) where a client begins if its user names no position."""
        lanes = [
            lane
            for lane in self.lanes.values()
            if lane.run is not None and lane is not client.lane and self.members(lane)
        ]
        if self.rules.mode == "broadcast" and client.lane.run is None and lanes:
            return max(lane.run.epoch for lane in lanes if lane.run) + 1, 0
        return client.lane.next_place(self._first)

    def late(self, client: Client, now: float) -> messages.Late | None:
        """Return what a new client misses of the current pass; None if nothing is consumed yet."""
        run = client.lane.run
        if run is None or run.over or not (run.done or len(run.out) == run.steps):
            return None
        others = [c for c in self.members(client.lane) if c is not client]
        names = [
            c.hello.name
            + (f", silent for {now - c.heard:.0f} s" if now - c.heard > _SILENT_SECONDS else "")
            for c in others
        ]
        return messages.Late(
            run.steps - len(run.done) - len(run.out),
            run.steps,
            [name[:300] for name in names[:_MAX_NAMED]],
        )

    def members(self, lane: Partition) -> list[Client]:
        """Return the clients of a partition."""
        return [c for c in self.clients.values() if c.lane is lane]

    def inside(self, lane: Partition, run: EpochPass) -> list[Client]:
        """Return the clients of a partition that read the pass."""
        return [c for c in self.members(lane) if c.run == run.number]

    def lane_of(self, key: Key) -> Partition | None:
        """Return the partition whose current pass a batch belongs to, or None."""
        return next(
            (
                lane
                for lane in self.lanes.values()
                if lane.run is not None and lane.run.number == key[0]
            ),
            None,
        )

    def lane_for(self, hello: messages.Hello) -> Partition:
        """Return the partition for a new client; with `broadcast`, create it. Raises Refusal."""
        rules = self.rules
        if len(self.clients) >= rules.most_clients:
            raise Refusal(
                f"the server has {counted(len(self.clients), 'client')}, and takes no more: "
                "serve with a larger --max-clients",
                again=True,
            )
        if rules.mode == "broadcast":
            return self.lanes.setdefault(hello.token, Partition(hello.token, 0))
        if rules.count is None:
            if hello.world > 1:
                raise Refusal(
                    f"{hello.world} ranks need equal steps, and this server shares its "
                    f"batches freely: serve with --clients {hello.world}"
                )
            return self.lanes["0"]
        return self._lane_of_rank(hello, rules.count)

    def _lane_of_rank(self, hello: messages.Hello, count: int) -> Partition:
        if hello.world not in (1, count):
            raise Refusal(
                f"this is rank {hello.rank} of {hello.world}, and the server deals out to "
                f"{count}: serve with --clients {hello.world}"
            )
        free = [lane for lane in self.lanes.values() if not self.members(lane)]
        candidates = [lane for lane in free if hello.world == 1 or lane.rank == hello.rank]
        if not candidates:
            taken = f"rank {hello.rank} is" if hello.world > 1 else f"all {count} places are"
            raise Refusal(
                f"{taken} taken on the server: by "
                f"{', '.join(c.hello.name for c in self.clients.values())}",
                again=True,
            )
        return candidates[0]

    def runs_now(self) -> list[int]:
        """Return the numbers of the current passes of all partitions."""
        return [lane.run.number for lane in self.lanes.values() if lane.run is not None]

    def must_wait(self, lane: Partition, epoch: int) -> bool:
        """Return whether a broadcast partition must wait for clients in the previous epoch."""
        if self.rules.mode != "broadcast":
            return False
        others = [
            o.run
            for o in self.lanes.values()
            if o is not lane and o.run is not None and self.inside(o, o.run)
        ]
        return any(run.epoch == epoch - 1 for run in others)

    # --- demand

    def room(self, run: int) -> int:
        """Return the total credits of the readers of a pass."""
        return sum(max(0, c.credits) for c in self.clients.values() if c.run == run)

    def needy(self) -> Partition | None:
        """Return the partition with the most unmet demand, or None if there is no demand."""
        lanes = [(self._need(lane), lane) for lane in self.lanes.values()]
        need, lane = max(lanes, key=lambda pair: pair[0], default=(0, None))
        return lane if need > 0 else None

    def spare(self) -> Partition | None:
        """Return a partition with steps left that may be made ahead of demand, or None."""
        lanes = [
            lane
            for lane in self.lanes.values()
            if lane.run is not None
            and lane.run.left
            and self.members(lane)
            and self._lead_left(lane.run) > 0
        ]
        return max(lanes, key=self._need, default=None)

    def _need(self, lane: Partition) -> int:
        """Return the credits of a partition's readers minus the batches that are being made."""
        if lane.run is None or not lane.run.left:
            return 0
        room = self.room(lane.run.number) - len(lane.run.making)
        return min(room, self._lead_left(lane.run))

    def _lead_left(self, run: EpochPass) -> int:
        """Return how many steps a broadcast partition may still go ahead of its slowest peer."""
        if self.rules.mode != "broadcast":
            return run.steps
        steps_taken = (
            self._steps_taken(run, c, c.lane.run)
            for c in self.clients.values()
            if c.lane.run is not None and not c.quiet
        )
        return (
            self.rules.hwm
            + min((s for s in steps_taken if s is not None), default=run.given)
            - run.given
        )

    def _steps_taken(self, run: EpochPass, client: Client, theirs: EpochPass) -> int | None:
        """Return how many steps a client took in the epoch of `run`.

        0 if it is about to begin that epoch, None if it reads another one.
        """
        if client.run == theirs.number and theirs.same_as(run):
            return theirs.given
        return 0 if client.between and theirs.epoch == run.epoch - 1 else None

    def facts(self, now: float) -> Iterator[dict[str, Any]]:
        """Yield the metrics of each client."""
        for c in self.clients.values():
            lag = {
                "holds": len(c.leases),
                "hwm": c.hwm,
                "consumed": c.consumed,
                "silent_seconds": round(now - c.heard, 3),
            }
            yield {"name": c.hello.name, "lane": c.lane.rank, "run": c.run, **lag}
