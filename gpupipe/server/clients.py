"""Who is there, where each may stand, and for whom a batch is needed: what can be asked of clients
and lanes without changing what they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpupipe.errors import counted
from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key
from gpupipe.server.client_state import Client, Refusal, Rules
from gpupipe.server.epoch_pass import EpochPass, Partition

_NAMED, _SILENT = 4, 2.0


class Clients:
    """Clients by their tokens, and lanes by their names.

    first: (epoch, position) where lanes begin.
    """

    def __init__(self, rules: Rules, first: tuple[int, int]) -> None:
        self.rules, self._first = rules, first
        self.clients: dict[str, Client] = {}
        self.lanes: dict[str, Partition] = {}
        if rules.mode == "share":
            for rank in range(rules.count or 1):
                self.lanes[str(rank)] = Partition(str(rank), rank)

    # --- where clients stand

    def place(self, client: Client) -> tuple[int, int]:
        """(epoch, position) where a client that has no wish of its own begins."""
        lanes = [
            lane
            for lane in self.lanes.values()
            if lane.run is not None and lane is not client.lane and self.members(lane)
        ]
        if self.rules.mode == "broadcast" and client.lane.run is None and lanes:
            return max(lane.run.epoch for lane in lanes if lane.run) + 1, 0
        return client.lane.next_place(self._first)

    def late(self, client: Client, now: float) -> messages.Late | None:
        """What a new client must know of the run that it finds: None where nothing of it is
        consumed yet.
        """
        run = client.lane.run
        if run is None or run.over or not (run.done or len(run.out) == run.steps):
            return None
        others = [c for c in self.members(client.lane) if c is not client]
        names = [
            c.hello.name
            + (f", silent for {now - c.heard:.0f} s" if now - c.heard > _SILENT else "")
            for c in others
        ]
        return messages.Late(
            run.steps - len(run.done) - len(run.out),
            run.steps,
            [name[:300] for name in names[:_NAMED]],
        )

    def members(self, lane: Partition) -> list[Client]:
        """The clients of a lane."""
        return [c for c in self.clients.values() if c.lane is lane]

    def inside(self, lane: Partition, run: EpochPass) -> list[Client]:
        """The clients that read a run."""
        return [c for c in self.members(lane) if c.run == run.number]

    def lane_of(self, key: Key) -> Partition | None:
        """The lane whose run a batch is of."""
        return next(
            (
                lane
                for lane in self.lanes.values()
                if lane.run is not None and lane.run.number == key[0]
            ),
            None,
        )

    def lane_for(self, hello: messages.Hello) -> Partition:
        """The lane of one who is new. Raises Refusal."""
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
        mine = [lane for lane in free if hello.world == 1 or lane.rank == hello.rank]
        if not mine:
            taken = f"rank {hello.rank} is" if hello.world > 1 else f"all {count} places are"
            raise Refusal(
                f"{taken} taken on the server: by "
                f"{', '.join(c.hello.name for c in self.clients.values())}",
                again=True,
            )
        return mine[0]

    def runs_now(self) -> list[int]:
        """The numbers of the runs of all lanes."""
        return [lane.run.number for lane in self.lanes.values() if lane.run is not None]

    def must_wait(self, lane: Partition, epoch: int) -> bool:
        """Whether others of a broadcast are in the epoch before: those in one epoch keep
        together.
        """
        if self.rules.mode != "broadcast":
            return False
        others = [
            o.run
            for o in self.lanes.values()
            if o is not lane and o.run is not None and self.inside(o, o.run)
        ]
        return any(run.epoch == epoch - 1 for run in others)

    # --- what is needed

    def room(self, run: int) -> int:
        """How many batches the readers of a run have room for."""
        return sum(max(0, c.credits) for c in self.clients.values() if c.run == run)

    def needy(self) -> Partition | None:
        """The lane for which a batch should be made first."""
        lanes = [(self._need(lane), lane) for lane in self.lanes.values()]
        need, lane = max(lanes, key=lambda pair: pair[0], default=(0, None))
        return lane if need > 0 else None

    def spare(self) -> Partition | None:
        """A lane of which something is left to be made and may be made now, needed or not: for an
        engine that works ahead.
        """
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
        """Batches that readers have room for and that are not under way."""
        if lane.run is None or not lane.run.left:
            return 0
        room = self.room(lane.run.number) - len(lane.run.making)
        return min(room, self._lead_left(lane.run))

    def _lead_left(self, run: EpochPass) -> int:
        """How far a lane of a broadcast may still go ahead of the slowest in the same epoch."""
        if self.rules.mode != "broadcast":
            return run.steps
        given = (
            self._given_beside(run, c, c.lane.run)
            for c in self.clients.values()
            if c.lane.run is not None and not c.quiet
        )
        return (
            self.rules.hwm + min((g for g in given if g is not None), default=run.given) - run.given
        )

    def _given_beside(self, run: EpochPass, client: Client, theirs: EpochPass) -> int | None:
        """How far a client is in the epoch of a run, 0 where it is about to begin it; None where it
        is elsewhere.
        """
        if client.run == theirs.number and theirs.same_as(run):
            return theirs.given
        return 0 if client.between and theirs.epoch == run.epoch - 1 else None

    def facts(self, now: float) -> Iterator[dict[str, Any]]:
        """What there is to say of each client."""
        for c in self.clients.values():
            lag = {
                "holds": len(c.leases),
                "hwm": c.hwm,
                "consumed": c.consumed,
                "silent_seconds": round(now - c.heard, 3),
            }
            yield {"name": c.hello.name, "lane": c.lane.rank, "run": c.run, **lag}
