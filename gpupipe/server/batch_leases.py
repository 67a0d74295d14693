"""Leases of single batches: lease, mark as consumed, requeue.

leases.py has the rules and the terms; `acknowledge`, which a client's message calls, is in
pass_schedule.py.
"""

from __future__ import annotations

from collections.abc import Callable

from gpupipe.protocol.messages import Key
from gpupipe.server.client_state import Client, LeaseRules
from gpupipe.server.clients import Clients
from gpupipe.server.epoch_pass import Partition

Log = Callable[..., None]


class BatchLeases(Clients):
    """Which client leases which batch.

    Args:
        rules: Mode, timeouts and limits.
        first: (epoch, position) where partitions begin.
        log: Logs an event that must survive the process.
    """

    def __init__(self, rules: LeaseRules, first: tuple[int, int], log: Log) -> None:
        super().__init__(rules, first)
        self._log = log

    def take(self, partition: Partition) -> Key | None:
        """Take the next step of a partition to make. None if there is none."""
        current = partition.current
        if current is None or (step := current.take()) is None:
            return None
        return current.number, step

    def is_first(self, key: Key) -> bool:
        """Return whether no earlier step of its pass waits to be leased."""
        partition = self.partition_of(key)
        current = partition.current if partition is not None else None
        return current is None or current.is_first(key[1])

    def requeue_unmade(self, key: Key) -> None:
        """Requeue a step that was taken but produced no batch."""
        partition = self.partition_of(key)
        if partition is not None and partition.current is not None:
            partition.current.requeue_unmade(key[1])

    def lease(self, key: Key) -> tuple[Client, bool] | None:
        """Lease a batch that is ready to the reader with the most credits.

        Returns:
            (client, is_last), or None if no reader has credits now, or an earlier step is not
            leased yet. is_last: the client now leases all that is left of the pass, so this is the
            last batch that it gets.

        Raises:
            KeyError: No pass needs the batch any more.
        """
        partition = self.partition_of(key)
        current = partition.current if partition is not None else None
        if partition is None or current is None or key[1] not in current.making:
            raise KeyError(key)
        if not current.is_first(key[1]):
            return None
        client = max(self.readers(partition, current), key=lambda c: c.credits, default=None)
        if client is None or client.credits <= 0:
            return None
        current.lease(key[1], client.token)
        client.leases.append(key)
        self._log("lease", *key, client.token)
        return client, current.is_all_leased_to(client.token)

    def _mark_consumed(self, client: Client, keys: list[Key]) -> None:
        """Mark batches as done that a client acknowledged, unless others lease them by now."""
        for key in keys:
            if key in client.leases:
                client.leases.remove(key)
            partition = self.partition_of(key)
            current = partition.current if partition is not None else None
            holder = current.leased.get(key[1]) if current is not None else None
            if partition is client.partition and holder in (None, client.token):
                client.num_consumed += self._finish(key)

    def _finish(self, key: Key) -> bool:
        """Mark a batch as done. False if it was already, or belongs to no current pass."""
        partition = self.partition_of(key)
        current = partition.current if partition is not None else None
        if current is None or not current.finish(key[1]):
            return False
        self._log("done", *key)
        return True

    def _requeue(self, client: Client, keys: list[Key]) -> None:
        """Requeue leases of a client."""
        for key in keys:
            client.leases.remove(key)
            partition = self.partition_of(key)
            if partition is not None and partition.current is not None:
                partition.current.requeue_leased(key[1])
                self._log("back", *key)

    def _reconcile(self, client: Client, held: list[Key]) -> None:
        """Reconcile leases with the batches `held` that a client holds after a reconnect.

        Requeue leases of batches that it does not hold. Lease again those that were requeued and
        that the server has not started to make again; only in order if the client is alone.
        """
        self._requeue(client, [key for key in client.leases if key not in held])
        still_leased, client.leases = set(client.leases), []
        current = client.partition.current
        is_alone = len(self.members(client.partition)) == 1
        for key in held:
            is_renewed = (
                key not in still_leased
                and current is not None
                and key[0] == current.number
                and (current.is_first(key[1]) or not is_alone)
                and current.lease_again(key[1], client.token)
            )
            if is_renewed:
                self._log("lease", *key, client.token)
            if is_renewed or key in still_leased:
                client.leases.append(key)
