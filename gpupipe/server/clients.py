"""Queries about sessions and partitions: members, start positions, credits, and what to make next.

Only `partition_for` changes anything. leases.py explains the terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpupipe.errors import counted
from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key
from gpupipe.server.client_state import BetweenPasses, Client, LeaseRules, RequestRefused
from gpupipe.server.epoch_pass import EpochPass, Partition

_MAX_NAMED, _SILENT_SECONDS = 4, 2.0


class Clients:
    """All sessions and partitions of a server.

    Args:
        rules: Mode, timeouts and limits.
        first: (epoch, position) where partitions begin.

    Attributes:
        clients: Sessions by client token.
        partitions: Partitions by name: the rank, or the client token with `broadcast`.
        stopped_at: If the clients are those of a server that was stopped, and none has come yet:
            when this server began, in seconds of its monotonic clock. Else None.
    """

    def __init__(self, rules: LeaseRules, first: tuple[int, int]) -> None:
        self.rules, self._first = rules, first
        self.clients: dict[str, Client] = {}
        self.stopped_at: float | None = None
        self.partitions: dict[str, Partition] = {}
        if rules.mode == "share":
            for rank in range(rules.num_ranks or 1):
                self.partitions[str(rank)] = Partition(str(rank), rank)

    # --- positions and members

    def start_position(self, client: Client) -> tuple[int, int]:
        """Return (epoch, position) where a client begins if its user names no position."""
        partitions = [
            partition
            for partition in self.partitions.values()
            if partition.current is not None
            and partition is not client.partition
            and self.members(partition)
        ]
        if self.rules.mode == "broadcast" and client.partition.current is None and partitions:
            return max(
                partition.current.epoch for partition in partitions if partition.current
            ) + 1, 0
        return client.partition.next_position(self._first)

    def pass_in_progress(self, client: Client, now: float) -> messages.PassInProgress | None:
        """Return what a new client misses of the current pass; None if nothing is consumed yet."""
        current = client.partition.current
        if (
            current is None
            or current.is_over
            or not (current.done or len(current.leased) == current.steps)
        ):
            return None
        others = [c for c in self.members(client.partition) if c is not client]
        names = [
            c.request.name
            + (
                f", silent for {now - c.last_heard:.0f} s"
                if now - c.last_heard > _SILENT_SECONDS
                else ""
            )
            for c in others
        ]
        return messages.PassInProgress(
            current.steps - len(current.done) - len(current.leased),
            current.steps,
            [name[:300] for name in names[:_MAX_NAMED]],
        )

    def members(self, partition: Partition) -> list[Client]:
        """Return the clients of a partition."""
        return [c for c in self.clients.values() if c.partition is partition]

    def readers(self, partition: Partition, current: EpochPass) -> list[Client]:
        """Return the clients of a partition that read the pass."""
        return [c for c in self.members(partition) if c.pass_number == current.number]

    def partition_of(self, key: Key) -> Partition | None:
        """Return the partition whose current pass a batch belongs to, or None."""
        return next(
            (
                partition
                for partition in self.partitions.values()
                if partition.current is not None and partition.current.number == key[0]
            ),
            None,
        )

    def partition_for(self, request: messages.OpenSession) -> Partition:
        """Return the partition for a new client; with `broadcast`, create it.

        Raises RequestRefused.
        """
        rules = self.rules
        if len(self.clients) >= rules.max_clients:
            raise RequestRefused(
                f"the server has {counted(len(self.clients), 'client')}, and takes no more: "
                "serve with a larger --max-clients",
                is_temporary=True,
            )
        if rules.mode == "broadcast":
            return self.partitions.setdefault(request.token, Partition(request.token, 0))
        if rules.num_ranks is None:
            if request.world_size > 1:
                raise RequestRefused(
                    f"{request.world_size} ranks need equal steps, and this server shares its "
                    f"batches freely: serve with --clients {request.world_size}"
                )
            return self.partitions["0"]
        return self._partition_of_rank(request, rules.num_ranks)

    def _partition_of_rank(self, request: messages.OpenSession, count: int) -> Partition:
        if request.world_size not in (1, count):
            raise RequestRefused(
                f"this is rank {request.rank} of {request.world_size}, and the server deals out to "
                f"{count}: serve with --clients {request.world_size}"
            )
        free = [partition for partition in self.partitions.values() if not self.members(partition)]
        candidates = [
            partition
            for partition in free
            if request.world_size == 1 or partition.rank == request.rank
        ]
        if not candidates:
            taken = (
                f"rank {request.rank} is" if request.world_size > 1 else f"all {count} places are"
            )
            raise RequestRefused(
                f"{taken} taken on the server: by "
                f"{', '.join(c.request.name for c in self.clients.values())}",
                is_temporary=True,
            )
        return candidates[0]

    def current_passes(self) -> list[int]:
        """Return the numbers of the current passes of all partitions."""
        return [
            partition.current.number
            for partition in self.partitions.values()
            if partition.current is not None
        ]

    def must_wait(self, partition: Partition, epoch: int) -> bool:
        """Return whether a broadcast partition must wait for clients in the previous epoch."""
        if self.rules.mode != "broadcast":
            return False
        others = [
            o.current
            for o in self.partitions.values()
            if o is not partition and o.current is not None and self.readers(o, o.current)
        ]
        return any(current.epoch == epoch - 1 for current in others)

    # --- demand

    def total_credits(self, pass_number: int) -> int:
        """Return the total credits of the readers of a pass."""
        return sum(max(0, c.credits) for c in self.clients.values() if c.pass_number == pass_number)

    def neediest(self) -> Partition | None:
        """Return the partition with the most unmet demand, or None if there is no demand."""
        partitions = [(self._need(partition), partition) for partition in self.partitions.values()]
        need, partition = max(partitions, key=lambda pair: pair[0], default=(0, None))
        return partition if need > 0 else None

    def partition_to_prefetch(self) -> Partition | None:
        """Return a partition with steps left that may be made ahead of demand, or None."""
        partitions = [
            partition
            for partition in self.partitions.values()
            if partition.current is not None
            and partition.current.has_queued
            and self.members(partition)
            and self._lead_left(partition.current) > 0
        ]
        return max(partitions, key=self._need, default=None)

    def _need(self, partition: Partition) -> int:
        """Return the credits of a partition's readers minus the batches that are made for them."""
        if partition.current is None or not partition.current.has_queued:
            return 0
        current = partition.current
        room = self.total_credits(current.number) - current.num_making_in_order
        return min(room, self._lead_left(current))

    def _lead_left(self, current: EpochPass) -> int:
        """Return how many steps a broadcast partition may still go ahead of its slowest peer."""
        if self.rules.mode != "broadcast":
            return current.steps
        steps_taken = (
            self._steps_taken(current, c, c.partition.current)
            for c in self.clients.values()
            if c.partition.current is not None and not c.is_silent
        )
        return (
            self.rules.hwm
            + min((s for s in steps_taken if s is not None), default=current.num_taken)
            - current.num_taken
        )

    def _steps_taken(self, current: EpochPass, client: Client, other: EpochPass) -> int | None:
        """Return how many steps a client took in the epoch of `current`.

        0 if it is about to begin that epoch, None if it reads another one.
        """
        if client.pass_number == other.number and other.starts_with(current):
            return other.num_taken
        return (
            0
            if isinstance(client.phase, BetweenPasses) and other.epoch == current.epoch - 1
            else None
        )

    def stats(self, now: float) -> Iterator[dict[str, Any]]:
        """Yield the metrics of each client."""
        for c in self.clients.values():
            lag = {
                "leased": len(c.leases),
                "hwm": c.hwm,
                "consumed": c.num_consumed,
                "silent_seconds": round(now - c.last_heard, 3),
            }
            yield {
                "name": c.request.name,
                "partition": c.partition.rank,
                "pass": c.pass_number,
                **lag,
            }
