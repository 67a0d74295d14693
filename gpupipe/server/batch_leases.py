"""The leases of single batches: choose the next step to make; lease, acknowledge, requeue a batch.

The life of a batch:

    neediest ─> take ─> (the engine makes it) ─> lease ─> (it is sent) ─> acknowledge

Terms:

- Pass (`EpochPass`, clients_and_passes.py): one pass over an epoch, or over the rest of one.
- Partition: a sequence of passes over the plans of one rank.
- Key: identifies a batch by the number of its pass and its step in that pass.
- Session (`Client`, clients_and_passes.py): the state that the server keeps of one client. A
  session survives reconnects and, with a state file, a restart of the server.

The rules. Together they make the clients consume every batch of a pass exactly once; rule 7 names
the only exception.

1. Fixed plans. All plans of a pass exist when it starts. The server makes a lost batch again from
   its plan, with the same samples and draws.
2. Lease. The server leases each batch to one client. It writes the lease to the write-ahead log
   (write_ahead_log.py) before it sends the batch. No other client gets a leased batch.
3. Acknowledge. The client acknowledges a batch (Acknowledge) when its consumer asks for the next
   one. The server logs the acknowledgement, then confirms it (Confirm).
4. Window. The client hands a batch to its consumer only while fewer than MAX_UNACKED earlier
   batches are unconfirmed (engines/remote/reading.py). So the consumer can have seen only the first
   MAX_UNACKED leases.
5. Heartbeat timeout. If the server hears nothing from a client for `heartbeat_timeout` seconds, it
   requeues all leases of the client but the first MAX_UNACKED. The consumer cannot have seen the
   requeued batches (rule 4). When the client is heard again, the server first says which leases are
   revoked (Revoke, or SessionOpened).
6. Session end. The server requeues all leases of a client when its session ends: the client sends
   CloseSession, or its process on this machine has ended. The session also ends if the client is
   not heard for `session_timeout` seconds, or if the queue of messages to it is full. A client that
   ends its iteration (EndIteration or StartIteration) returns its leases too.
7. Late acknowledgement. A client may come back after the server ended its session. Its
   acknowledgement counts unless the batch is leased to another client by then. Only in that case
   can two live clients consume the same batch.
8. End of a pass. A pass ends when all of its steps are done. The server drops an unfinished pass if
   no client wants it and some client wants another pass. Readers that have got all their batches
   wait until the pass ends, since the batches of a client that dies are requeued.
9. New client. If no other client has its partition, a new client starts at the first epoch, and the
   server forgets the unfinished pass. With the option `resume` the client continues that pass. If
   there are other clients, the new one joins their pass, and SessionOpened says how much is left.
10. Reconnect. A client sends OpenSession again after its connection or the server was replaced. The
    message names the batches that the client holds and those that it consumed. The server requeues
    leases whose batches never arrived, and the client drops batches that it no longer leases.
11. Order. The batches of a partition are leased in the order of its steps: a ready batch waits for
    earlier batches that were requeued. So a client that is alone in its partition gets its batches
    in order, and what it has consumed is all that comes before its position.
12. Stopped server. Clients that were connected when a server was stopped continue with the next
    server, as after a crash. If none of them comes within RETURN_SECONDS, the run has ended, and a
    new client starts at the first epoch.
13. Server without a record. A client that shared a pass with others does not continue it with a
    server of another history: neither of the two knows what the others consumed.

Partitions per mode:

- `share` has one partition for all clients: each batch goes to exactly one of them.
- `share` with `clients: N` has one partition for each of N ranks. All have equally many steps, as
  the shards of a DataLoader have.
- `broadcast` has one partition per client: every client gets every batch. Clients in the same epoch
  stay within `hwm` batches of each other; silent clients do not hold up the others.
"""

from dataclasses import dataclass

from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key
from gpupipe.server.clients_and_passes import BetweenPasses, Client, EpochPass, Partition
from gpupipe.server.lease_state import LeaseState, StepDone, StepLeased, StepRequeued
from gpupipe.server.pass_schedule import PassSchedule


@dataclass(frozen=True)
class Leased:
    """The result of BatchLeases.lease if a client now leases the batch.

    Attributes:
        client: The client.
        is_last: Whether the client now leases all unfinished steps of the pass, so that it gets no
            further batch.
    """

    client: Client
    is_last: bool


@dataclass(frozen=True)
class MustWait:
    """The result of BatchLeases.lease if a ready batch cannot be leased yet.

    Either no client that reads the pass has credits, or an earlier batch of the pass is still
    queued or being made. The server keeps the batch, and tries again later.
    """


@dataclass(frozen=True)
class NotNeeded:
    """The result of BatchLeases.lease if no pass needs the batch any more."""


LeaseResult = Leased | MustWait | NotNeeded


class BatchLeases:
    """Leases batches to clients, marks them as done, and requeues them.

    Args:
        state: Sessions, partitions and leases.
        passes: Ends a pass when its last batch is acknowledged.
    """

    def __init__(self, state: LeaseState, passes: PassSchedule) -> None:
        self._state, self._passes = state, passes

    # --- one batch

    def take(self, partition: Partition) -> Key | None:
        """Take the next step of a partition to make, and return its key; None if none is queued."""
        current = partition.current
        if current is None or (step := current.take()) is None:
            return None
        return current.number, step

    def requeue_unmade(self, key: Key) -> None:
        """Requeue a step that was taken but not leased: its batch failed or was dropped."""
        if (current := self._state.find_pass(key[0])) is not None:
            current.requeue_unmade(key[1])

    def skip(self, key: Key) -> None:
        """Mark a batch as done because none of its samples could be read."""
        self._finish(key)
        self._passes.settle_all()

    def is_first(self, key: Key) -> bool:
        """Return whether no earlier step of the same pass is queued or being made."""
        current = self._state.find_pass(key[0])
        return current is None or current.is_first(key[1])

    def lease(self, key: Key) -> LeaseResult:
        """Lease a ready batch to the reader of its pass that has the most credits."""
        current = self._state.find_pass(key[0])
        if current is None or key[1] not in current.making:
            return NotNeeded()
        readers = self._state.readers(current.number)
        client = max(readers, key=lambda c: c.credits, default=None)
        if client is None or client.credits <= 0 or not current.is_first(key[1]):
            return MustWait()
        self._state.commit(StepLeased(*key, client.token))
        return Leased(client, current.is_all_leased_to(client.token))

    def acknowledge(self, token: str, keys: list[Key]) -> None:
        """Mark as done the batches that a client acknowledges, and send it a Confirm (rule 3)."""
        client = self._state.clients[token]
        self.mark_consumed(client, keys)
        if keys:
            self._state.send(client, messages.Confirm(keys))

    def mark_consumed(self, client: Client, keys: list[Key]) -> None:
        """Mark batches as done, except those that another client leases by now (rule 7)."""
        for key in keys:
            current = client.partition.current
            if (
                current is not None
                and current.number == key[0]
                and current.leased.get(key[1], client.token) == client.token
            ):
                client.num_consumed += self._finish(key)
        self._passes.settle_all()

    def _finish(self, key: Key) -> bool:
        """Mark a batch as done. Return False if it is done already, or of no current pass."""
        current = self._state.find_pass(key[0])
        if current is None or not current.can_finish(key[1]):
            return False
        self._state.commit(StepDone(*key))
        return True

    # --- the leases of a client

    def requeue(self, keys: list[Key]) -> None:
        """Requeue leased batches."""
        for key in list(keys):
            self._state.commit(StepRequeued(*key))

    def reconcile(self, client: Client, held: list[Key]) -> None:
        """Reconcile a client's leases with the batches that it still holds after a reconnect.

        Requeues the leases of all batches that the client does not hold. Leases a held batch to the
        client again if the batch's step was requeued and not taken since. To a client that is alone
        in its partition, the batch is leased only if all earlier steps are leased or done.

        Args:
            client: The client that has reconnected.
            held: Keys of the batches that the client holds.
        """
        self.requeue([key for key in client.leases if key not in held])
        current = client.partition.current
        is_alone = len(self._state.members(client.partition)) == 1
        for key in held:
            if (
                current is not None
                and key[0] == current.number
                and key[1] in current.requeued
                and (current.is_first(key[1]) or not is_alone)
            ):
                self._state.commit(StepLeased(*key, client.token))
        client.leases.sort(key=held.index)

    # --- demand

    def total_credits(self, pass_number: int) -> int:
        """Return how many batches the readers of a pass may lease now, in total."""
        return sum(max(0, c.credits) for c in self._state.readers(pass_number))

    def neediest(self) -> Partition | None:
        """Return the partition for which most batches must be made; None if no batch is needed."""
        partitions = self._state.partitions.values()
        partition = max(partitions, key=self._unmet_demand, default=None)
        return partition if partition is not None and self._unmet_demand(partition) > 0 else None

    def partition_to_prefetch(self) -> Partition | None:
        """Return a partition whose next batch may be made before a client needs it, or None."""
        partitions = [
            partition
            for partition in self._state.partitions.values()
            if partition.current is not None
            and partition.current.has_queued
            and self._state.members(partition)
            and self._lead_left(partition.current) > 0
        ]
        return max(partitions, key=self._unmet_demand, default=None)

    def _unmet_demand(self, partition: Partition) -> int:
        """Return how many more batches the readers of a partition need; at most `_lead_left`."""
        current = partition.current
        if current is None or not current.has_queued:
            return 0
        room = self.total_credits(current.number) - current.num_making_in_order
        return min(room, self._lead_left(current))

    def _lead_left(self, current: EpochPass) -> int:
        """Return how many more steps of a pass the engine may take now.

        With `broadcast`, a pass may be at most `hwm` steps ahead of the slowest client in the same
        epoch. With `share` there is no such limit.
        """
        if self._state.options.mode != "broadcast":
            return current.steps
        steps_taken = [
            steps
            for client in self._state.clients.values()
            if not client.is_silent and (steps := _count_steps_taken(current, client)) is not None
        ]
        slowest = min(steps_taken, default=current.num_taken)
        return self._state.options.hwm + slowest - current.num_taken


def _count_steps_taken(current: EpochPass, client: Client) -> int | None:
    """Return how many steps of a client's pass have been taken, to compare with `current`.

    Returns None if the client's pass cannot be compared, since it started elsewhere. Returns 0 if
    the client has just finished the epoch before.
    """
    other = client.partition.current
    if other is None:
        return None
    if client.pass_number == other.number and other.start == current.start:
        return other.num_taken
    is_next = isinstance(client.phase, BetweenPasses) and other.epoch == current.epoch - 1
    return 0 if is_next else None
