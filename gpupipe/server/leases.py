"""Batch leases: the server's half of the protocol, without sockets, threads or clocks.

This file has the rules and what happens to sessions. Each class adds one subject to the one before:

    Clients (clients.py)             who is there, and who needs batches: queries
    BatchLeases (batch_leases.py)    one batch: lease, acknowledge, requeue
    PassSchedule (pass_schedule.py)  when passes start and end, and who enters them
    Leases (here)                    when sessions start and end

Terms:

- Pass (`EpochPass`): one pass over an epoch, or over the rest of one.
- Partition: a sequence of passes over the plans of one rank.
- Key: identifies a batch by the number of its pass and its step in that pass.
- Session (`Client`): the state that the server keeps of one client. A session survives reconnects
  and, with a state file, a restart of the server.

The rules. Together they make the clients consume every batch of a pass exactly once; rule 7 names
the only exception.

1. Fixed plans. All plans of a pass exist when it starts. The server makes a lost batch again from
   its plan, with the same samples and draws.
2. Lease. The server leases each batch to one client. It writes the lease to the write-ahead log
   (write_ahead_log.py) before it sends the batch. No other client gets a leased batch.
3. Acknowledge. The client acknowledges a batch (Acknowledge) when its consumer asks for the next
   one. The server logs the acknowledgement, then confirms it (Confirm).
4. Window. The client hands a batch to its consumer only while fewer than MAX_UNACKED earlier
   batches are unconfirmed (client/inbox.py). So the consumer can have seen only the first
   MAX_UNACKED leases.
5. Heartbeat timeout. If the server hears nothing from a client for `heartbeat_timeout` seconds, it
   requeues all of its leases but the first MAX_UNACKED. The consumer cannot have seen those
   (rule 4). When the client is heard again, the server first says that they are revoked (Revoke, or
   SessionOpened).
6. Session end. The server requeues all leases of a client when its session ends: the client sends
   CloseSession, or its process on this machine has ended. The session also ends if the client is
   not heard for `session_timeout` seconds, or if the queue of messages to it is full. A client that
   ends its iteration (EndIteration or StartIteration) returns its leases too.
7. Late acknowledgement. A client may come back after the server ended its session. Its
   acknowledgement counts unless the batch is leased to another client by then. Only then can two
   live clients consume the same batch.
8. End of a pass. A pass ends when all of its steps are done. The server drops an unfinished pass if
   no client wants it and some client wants another one. Until then the pass's readers wait at its
   end, since the batches of a client that dies are requeued.
9. New client. If no other client has its partition, a new client starts at the first epoch, and the
   server forgets the unfinished pass. With the option `resume` the client continues that pass. If
   there are other clients, it joins their pass, and SessionOpened says how much of it is left.
10. Reconnect. A client sends OpenSession again after its connection or the server was replaced. The
    message names the batches that the client holds and those that it consumed. The server requeues
    leases whose batches never arrived, and the client drops batches that it no longer leases.
11. Order. The batches of a partition are leased in the order of its steps: one that is ready waits
    for earlier ones that were requeued. So a client that is alone in its partition gets its batches
    in order, and what it has consumed is all that comes before its position.
12. Stopped server. Clients that were connected when the server was stopped continue with the next
    one, as after a crash. If none of them comes within RETURN_SECONDS, the run has ended, and a new
    client starts at the first epoch.
13. Server without a record. A client that shared a pass with others does not continue it with a
    server of another history: it cannot know what the others consumed.

Partitions per mode:

- `share` has one partition for all clients: each batch goes to exactly one of them.
- `share` with `clients: N` has one partition for each of N ranks. All have equally many steps, as
  the shards of a DataLoader have.
- `broadcast` has one partition per client: every client gets every batch. Clients in the same epoch
  stay within `hwm` batches of each other; silent clients do not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable

from gpupipe.protocol import messages
from gpupipe.protocol.messages import MAX_UNACKED, Key
from gpupipe.server.client_state import Client, RequestRefused
from gpupipe.server.pass_schedule import PassSchedule

RETURN_SECONDS = 5.0
"""How long new clients wait for those of a server that was stopped. These come after about one."""


class Leases(PassSchedule):
    """All partitions, clients and leases of a server. It applies the rules at the head of the file.

    Every `now` is in seconds, of a monotonic clock.
    """

    def is_overtaken(self, request: messages.OpenSession) -> bool:
        """Return whether the client already sent a later request, on another connection."""
        client = self.clients.get(request.token)
        return client is not None and request.number <= client.request.number

    def open_session(
        self, request: messages.OpenSession, now: float, is_known: bool = False
    ) -> Client:
        """Open a client's session, or continue it after a reconnect. The caller answers the client.

        Args:
            request: The client's message.
            now: Seconds, of a monotonic clock.
            is_known: The request names this server's history: the client had a session here before.
                What another client holds and consumed is of another server, and does not count.

        Raises:
            RequestRefused: The server has no room, or no partition, for this client.
        """
        client = self.clients.get(request.token)
        if client is None:
            client = self._add_client(request, now, is_known)
        client.request, client.last_heard = request, now
        client.hwm = min(request.hwm, self.rules.hwm)
        client.is_silent, client.revoked = False, []
        client.reconnect()
        held, consumed = (request.held, request.consumed) if is_known else ([], [])
        self._mark_consumed(client, consumed)
        self._settle_all()
        self._reconcile(client, held)
        if consumed:
            self._send(client, messages.Confirm(consumed))
        return client

    def settle_stopped_run(self, is_known: bool, now: float) -> None:
        """Decide whether the run of a server that was stopped goes on, when the first client comes.

        Args:
            is_known: That client is one of the run.
            now: Seconds, of a monotonic clock.

        Raises:
            RequestRefused: It is a new client, and those of the run may still come.
        """
        if self.stopped_at is not None and self.clients and not is_known:
            if now < self.stopped_at + RETURN_SECONDS:
                raise RequestRefused(
                    f"the server waits {RETURN_SECONDS:g} s for the clients of the last one, which "
                    "was stopped",
                    is_temporary=True,
                )
            for token in list(self.clients):
                self.end_session(token)
        self.stopped_at = None

    def _add_client(self, request: messages.OpenSession, now: float, is_known: bool) -> Client:
        partition = self.partition_for(request)
        if not (is_known or self.rules.resume or self.members(partition)):
            self._drop_pass(partition)
        client = Client(request.token, request, partition, 0, now)
        self.clients[request.token] = client
        client.is_late = not is_known and self.pass_in_progress(client, now) is not None
        self._log(
            "client",
            request.token,
            partition.name,
            request.name,
            request.host_id,
            request.pid,
            request.process_started,
        )
        return client

    def record_heartbeat(self, token: str, now: float) -> bool:
        """Record that a client was heard, and tell it which leases it lost while it was silent.

        False if it has no session.
        """
        client = self.clients.get(token)
        if client is None:
            return False
        client.last_heard, client.is_silent = now, False
        if client.revoked:
            self._send(client, messages.Revoke(client.revoked))
            client.revoked = []
        return True

    def apply_timeouts(self, now: float, has_ended: Callable[[messages.OpenSession], bool]) -> None:
        """Apply the heartbeat timeout and the session timeout to all clients.

        Args:
            now: Seconds, of a monotonic clock.
            has_ended: Returns True if the client's process is known to have ended.
        """
        for client in list(self.clients.values()):
            silence = now - client.last_heard
            if silence > self.rules.session_timeout or has_ended(client.request):
                self.end_session(client.token)
            elif silence > self.rules.heartbeat_timeout and not client.is_silent:
                client.is_silent = True
                client.revoked = client.leases[MAX_UNACKED:]
                self._requeue(client, client.revoked)

    def close_session(self, token: str, consumed: list[Key]) -> None:
        """End a session at the client's request, after its last acknowledgements."""
        client = self.clients.get(token)
        if client is not None:
            self._mark_consumed(client, consumed)
            self._settle_all()
            self.end_session(token)

    def end_session(self, token: str) -> None:
        """End a session and requeue all of its leases. Idempotent."""
        client = self.clients.pop(token, None)
        if client is None:
            return
        self._requeue(client, list(client.leases))
        self._log("gone", token)
        if self.rules.mode == "broadcast":
            self.partitions.pop(client.partition.name, None)
        self._settle_all()
