"""The schedule of passes: which clients a pass has, when it ends, and which pass starts next.

The head of batch_leases.py has the rules. Two clients that share epoch 0, of 12 steps:

    client A asks for epoch 0          a pass starts, and A reads it
    client B asks for epoch 0          B joins it: A and B have some of the 12 steps each
    the last step is acknowledged      the pass ends: A and B get PassEnded
    A asks for epoch 1                 the next pass starts
    client C asks for epoch 0, late    C joins the pass over epoch 1: epoch 0 has been consumed

A client starts an iteration. The first line that fits says what it gets (`schedule`):

    it asks for                                                      and gets
    the current pass, not over, that it began to read before         this pass
    a whole earlier epoch, which others have consumed                the current pass
    a pass that was forgotten while it was away                      RequestRefused
    a pass that is over                                              PassEnded
    a whole epoch that others have just consumed to its end          PassEnded
    any other position, which takes no pass from other clients       the pass that starts there

Invariants:

- A partition has at most one pass that is not over. All readers of the partition read that pass.
- No client enters a pass a second time, unless it continues there.
- A pass that clients read ends only when all of its steps are done.
"""

from collections.abc import Callable

from gpupipe.errors import counted
from gpupipe.protocol import messages
from gpupipe.server.clients_and_passes import (
    BetweenPasses,
    Client,
    EpochPass,
    Partition,
    Reconnecting,
    Waiting,
)
from gpupipe.server.lease_state import LeaseState, PassDropped, PassStarted

CountSteps = Callable[[int, int, int], int]
"""Returns the number of steps of a pass, from (rank, epoch, position).

Raises StateError if there is no such position.
"""


class RequestRefused(Exception):
    """The server refuses a request of a client; the text says why.

    Attributes:
        is_temporary: The same request may succeed later.
    """

    def __init__(self, reason: str, is_temporary: bool = False) -> None:
        self.is_temporary = is_temporary
        super().__init__(reason)


class PassSchedule:
    """Starts and ends the passes of all partitions.

    Args:
        state: Sessions, partitions and leases.
        count_steps: Returns the number of steps of a pass, from (rank, epoch, position).
    """

    def __init__(self, state: LeaseState, count_steps: CountSteps) -> None:
        self._state, self._count_steps = state, count_steps

    # --- a client that starts an iteration

    def is_continued(self, client: Client, begin: messages.StartIteration) -> bool:
        """Return whether the client's iteration continues the current pass."""
        current = client.partition.current
        return current is not None and (
            current.number == begin.pass_number
            or client.last_entry == (begin.iteration, current.number)
        )

    def schedule(self, client: Client, begin: messages.StartIteration, is_continued: bool) -> None:
        """Let an idle client enter a pass or wait for one, or tell it that its pass has ended.

        The head of this file lists the cases.

        Args:
            client: The client.
            begin: The client's message.
            is_continued: Whether the client's iteration continues the current pass.

        Raises:
            RequestRefused: The position would take a pass from other clients, or the client's own
                pass was forgotten while it was away.
            StateError: There is no such epoch or position.
        """
        current, number = client.partition.current, begin.pass_number
        last = self._state.next_pass - 1 if current is None else current.number
        # The client was slow, was paused or is new, and its user chose no epoch. If other clients
        # have read this epoch, a new pass would deliver its samples again.
        asks_for_epoch = not begin.is_explicit and number < 0 and begin.position == 0
        can_join_later = (
            current is not None
            and asks_for_epoch
            and begin.epoch < current.epoch
            and current.number not in client.entered_passes
        )
        if current is not None and not current.is_over and (is_continued or can_join_later):
            self._enter(client, current)
        elif 0 <= number < client.partition.first_pass:
            raise RequestRefused(
                "another client has begun again since the server last heard of this one: connect "
                "again, and load the state of a checkpoint to go on from there"
            )
        elif is_continued or 0 <= number <= last:
            self._state.send(client, messages.PassEnded(last if is_continued else number))
        elif current and current.is_over and asks_for_epoch and begin.epoch <= current.epoch:
            self._enter(client, current)
            self.settle_all()
        else:
            self._wait_for_pass(client, begin)

    def _wait_for_pass(self, client: Client, begin: messages.StartIteration) -> None:
        """Let a client wait for a pass that starts at the position that it asks for.

        Raises RequestRefused if that pass would replace the pass of other clients. Raises
        StateError if there is no such position.
        """
        current, start = client.partition.current, (begin.epoch, begin.position)
        self._count_steps(client.partition.rank, *start)
        others = 0 if current is None else len(self._state.readers(current.number))
        if (
            current is not None
            and others
            and begin.epoch <= current.epoch
            and not _can_enter(client, current, start)
        ):
            raise RequestRefused(
                f"epoch {begin.epoch} from sample {begin.position} on was asked for, but "
                f"{counted(others, 'other client')} of this server "
                f"share epoch {current.epoch} now, and "
                f"{len(current.done) + len(current.leased):,} of its {current.steps:,} batches are "
                f"given out: go on with epoch {current.epoch + 1}, "
                "or serve with --mode broadcast or --clients N"
            )
        client.phase = Waiting(*start)
        self.settle_all()

    # --- the passes of a partition

    def drop(self, partition: Partition) -> None:
        """Forget the current pass, so that the partition starts from the beginning."""
        if partition.current is not None:
            self._state.commit(PassDropped(partition.name, self._state.next_pass))

    def settle_all(self) -> None:
        """End all passes that are complete, and start those that clients wait for."""
        for partition in self._state.partitions.values():
            current = partition.current
            if current is not None and current.is_over:
                self._end(current)
            if current is None or current.is_over or not self._is_in_use(partition, current):
                self._start_next(partition)

    def _end(self, current: EpochPass) -> None:
        for client in self._state.readers(current.number):
            client.phase = BetweenPasses()
            self._state.send(client, messages.PassEnded(current.number))

    def _is_in_use(self, partition: Partition, current: EpochPass) -> bool:
        """Let the clients that wait for a pass enter it. Return whether any client reads it.

        A client that reconnects counts as a reader, since it may continue the pass.
        """
        members = self._state.members(partition)
        for client in members:
            if client.wanted is not None and _can_enter(client, current, client.wanted):
                self._enter(client, current)
        return any(
            c.pass_number == current.number or isinstance(c.phase, Reconnecting) for c in members
        )

    def _start_next(self, partition: Partition) -> None:
        """Start the earliest pass that clients wait for, if there is any."""
        waiting = [c for c in self._state.members(partition) if c.wanted is not None]
        start = min((c.wanted for c in waiting if c.wanted is not None), default=None)
        if start is None or self._must_wait(partition, start[0]):
            return
        steps = self._count_steps(partition.rank, *start)
        self._state.commit(PassStarted(partition.name, self._state.next_pass, *start, steps))
        assert partition.current is not None
        for client in waiting:
            if client.wanted == start:
                self._enter(client, partition.current)

    def _must_wait(self, partition: Partition, epoch: int) -> bool:
        """Return whether a pass over `epoch` must wait, as other clients still read `epoch - 1`.

        Only with `broadcast`, where each client has a partition of its own.
        """
        return self._state.options.mode == "broadcast" and any(
            other.epoch == epoch - 1 and self._state.readers(other.number)
            for other in self._state.current_passes()
            if other is not partition.current
        )

    def _enter(self, client: Client, current: EpochPass) -> None:
        client.enter(current.number)
        readers = self._state.readers(current.number)
        for reader in readers:
            self._state.send(
                reader,
                messages.IterationStarted(reader.iteration, current.number, len(readers) > 1),
            )


def _can_enter(client: Client, current: EpochPass, start: tuple[int, int]) -> bool:
    """Return whether a pass starts at `start`, and the client has never entered the pass."""
    return current.start == start and current.number not in client.entered_passes
