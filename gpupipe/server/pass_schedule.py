"""When passes start and end, and which clients enter them. leases.py has the rules."""

from __future__ import annotations

from collections.abc import Callable

from gpupipe.errors import counted
from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key
from gpupipe.server.batch_leases import BatchLeases, Log
from gpupipe.server.client_state import (
    BetweenPasses,
    Client,
    Idle,
    LeaseRules,
    Reconnecting,
    RequestRefused,
    Waiting,
)
from gpupipe.server.epoch_pass import EpochPass, Partition


class PassSchedule(BatchLeases):
    """The passes of all partitions, and the iterations of the clients that read them.

    Args:
        rules: Mode, timeouts and limits.
        steps: Returns the number of steps of a pass, from (rank, epoch, position). Raises
            StateError.
        first: (epoch, position) where partitions begin.
        log: Logs an event that must survive the process.

    Attributes:
        outbox: (client token, message) pairs to send, in order.
        next_pass: Number of the next pass.
    """

    def __init__(
        self,
        rules: LeaseRules,
        steps: Callable[[int, int, int], int],
        first: tuple[int, int],
        log: Log = lambda *event: None,
    ) -> None:
        super().__init__(rules, first, log)
        self._steps = steps
        self.outbox: list[tuple[str, messages.ToClient]] = []
        self.next_pass = 0

    def start_iteration(self, token: str, begin: messages.StartIteration) -> None:
        """Start a client's iteration: it enters a pass, or waits for one.

        Raises:
            RequestRefused: The position would take a pass from other clients, or the client's own
                pass was forgotten while it was away.
            StateError: There is no such epoch or position.
        """
        client = self.clients[token]
        client.phase, client.iteration = Idle(), begin.iteration
        current = client.partition.current
        if current is not None and client.is_late and begin.is_explicit:
            # the user named this position: the rest of the current pass does not stand in for it
            client.entered_passes.add(current.number)
        client.is_late = False
        goes_on = current is not None and (
            current.number == begin.pass_number
            or client.last_entry == (begin.iteration, current.number)
        )
        kept = current.number if goes_on and current is not None else None
        self._requeue(client, [key for key in client.leases if key[0] != kept])
        if (
            current is not None
            and not current.is_over
            and (goes_on or self._can_join(client, begin, current))
        ):
            self._enter(client, current)
        elif 0 <= begin.pass_number < client.partition.first_pass:
            raise RequestRefused(
                "another client has begun again since the server last heard of this one: connect "
                "again, and load the state of a checkpoint to go on from there"
            )
        elif goes_on or (
            0 <= begin.pass_number < self.next_pass
            and (current is None or begin.pass_number <= current.number)
        ):
            self._send(client, messages.PassEnded(begin.pass_number if kept is None else kept))
        elif current is not None and _has_missed_epoch(begin, current):
            self._enter(client, current)
            self._settle_all()
        else:
            self._steps(client.partition.rank, begin.epoch, begin.position)
            self._check_position(client, begin)
            client.phase = Waiting(begin.epoch, begin.position)
            self._settle_all()

    def end_iteration(self, token: str) -> None:
        """End a client's iteration and requeue what it has not consumed."""
        client = self.clients[token]
        client.phase = Idle()
        self._requeue(client, list(client.leases))
        self._settle_all()

    def fail_pass(self, pass_number: int) -> list[Client]:
        """End the iterations of all readers of a pass after an error, and return these clients."""
        readers = [c for c in self.clients.values() if c.pass_number == pass_number]
        for client in readers:
            self.end_iteration(client.token)
        return readers

    def acknowledge(self, token: str, keys: list[Key]) -> None:
        """Acknowledge batches that a client's consumer is done with, and confirm that."""
        client = self.clients[token]
        self._mark_consumed(client, keys)
        self._settle_all()
        self._send(client, messages.Confirm(keys))

    def skip(self, key: Key) -> None:
        """Mark a batch as done of which no sample could be read."""
        self._finish(key)
        self._settle_all()

    # --- passes

    def _can_join(self, client: Client, begin: messages.StartIteration, current: EpochPass) -> bool:
        """Return whether a client joins the current pass, though it asks for a whole earlier epoch.

        It does if it was slow, was paused or is new: others have read that epoch.
        """
        is_earlier = (
            not begin.is_explicit
            and begin.pass_number < 0
            and begin.position == 0
            and begin.epoch < current.epoch
        )
        return is_earlier and current.number not in client.entered_passes

    def _check_position(self, client: Client, begin: messages.StartIteration) -> None:
        """Raise RequestRefused if the position requires to end a pass that others read."""
        current = client.partition.current
        others = len(self.readers(client.partition, current)) if current is not None else 0
        if (
            current is None
            or not others
            or begin.epoch > current.epoch
            or (
                current.is_at(begin.epoch, begin.position)
                and current.number not in client.entered_passes
            )
        ):
            return
        raise RequestRefused(
            f"epoch {begin.epoch} from sample {begin.position} on was asked for, but "
            f"{counted(others, 'other client')} of this server "
            f"share epoch {current.epoch} now, and "
            f"{len(current.done) + len(current.leased):,} of its {current.steps:,} batches are "
            f"given out: go on with epoch {current.epoch + 1}, "
            "or serve with --mode broadcast or --clients N"
        )

    def _drop_pass(self, partition: Partition) -> None:
        """Forget the current pass, so that the partition starts from the beginning."""
        if partition.current is not None:
            partition.current, partition.first_pass = None, self.next_pass
            self._log("anew", partition.name, self.next_pass)

    def _settle_all(self) -> None:
        for partition in self.partitions.values():
            self._settle(partition)

    def _settle(self, partition: Partition) -> None:
        """End a pass that is complete, and start the one that clients wait for."""
        current = partition.current
        if current is not None and current.is_over:
            for client in self.readers(partition, current):
                client.phase = BetweenPasses()
                self._send(client, messages.PassEnded(current.number))
        members = self.members(partition)
        if current is not None and not current.is_over:
            for client in members:
                if (
                    client.wanted is not None
                    and current.is_at(*client.wanted)
                    and current.number not in client.entered_passes
                ):
                    self._enter(client, current)
            if self.readers(partition, current) or any(
                isinstance(c.phase, Reconnecting) for c in members
            ):
                return
        wanted = [c.wanted for c in members if c.wanted is not None]
        if wanted and not self.must_wait(partition, min(wanted)[0]):
            self._start_pass(partition, *min(wanted))

    def _start_pass(self, partition: Partition, epoch: int, position: int) -> None:
        steps = self._steps(partition.rank, epoch, position)
        current = partition.current = EpochPass(self.next_pass, epoch, position, steps)
        self.next_pass += 1
        self._log("run", partition.name, current.number, epoch, position, steps)
        for client in self.members(partition):
            if client.wanted == (epoch, position):
                self._enter(client, current)

    def _enter(self, client: Client, current: EpochPass) -> None:
        client.enter(current.number)
        readers = self.readers(client.partition, current)
        for reader in readers:
            self._send(
                reader,
                messages.IterationStarted(reader.iteration, current.number, len(readers) > 1),
            )

    def _send(self, client: Client, message: messages.ToClient) -> None:
        self.outbox.append((client.token, message))


def _has_missed_epoch(begin: messages.StartIteration, current: EpochPass) -> bool:
    """Return whether other clients have read the whole epoch that a client asks for.

    The client was slow or paused, and the user did not choose the epoch. A new pass would deliver
    the samples of that epoch again.
    """
    return (
        current.is_over
        and not begin.is_explicit
        and begin.pass_number < 0
        and begin.position == 0
        and begin.epoch <= current.epoch
    )
