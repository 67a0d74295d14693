"""Batch leases: the server's half of the protocol, without sockets, threads or clocks.

Terms:

- Pass (`EpochPass`; `run` in names and messages): one pass over an epoch, or over the rest of one.
- Partition (`lane` in names): a sequence of passes over the plans of one rank.
- Key: identifies a batch by the number of its pass and its step in that pass.
- Session (`Client`): the state that the server keeps of one client. A session survives reconnects
  and, with a state file, a restart of the server.

The rules. Together they make the clients consume every batch of a pass exactly once; rule 7 names
the only exception.

1. Fixed plans. All plans of a pass exist when it starts. The server makes a lost batch again from
   its plan, with the same samples and draws.
2. Lease. The server leases each batch to one client. It writes the lease to the write-ahead log
   (write_ahead_log.py) before it sends the batch. No other client gets a leased batch.
3. Acknowledge. The client acknowledges a batch (Done) when its consumer asks for the next one. The
   server logs the acknowledgement, then confirms it (Confirm).
4. Window. The client hands a batch to its consumer only while fewer than WINDOW earlier batches
   are unconfirmed (client/inbox.py). So the consumer can have seen only the first WINDOW leases.
5. Heartbeat timeout. If the server hears nothing from a client for `silent` seconds, it requeues
   all of its leases but the first WINDOW. The consumer cannot have seen those (rule 4). When the
   client is heard again, the server first says that they are revoked (Revoke, or Welcome).
6. Session end. The server requeues all leases of a client when its session ends: the client says
   Bye, or its process on this machine has ended. The session also ends if the client is not heard
   for `lost` seconds (session timeout), or if the queue of messages to it is full. A client that
   ends its iteration (Stop, or another Begin) returns its leases too.
7. Late acknowledgement. A client may come back after the server ended its session. Its
   acknowledgement counts unless the batch is leased to another client by then. Only then can two
   live clients consume the same batch.
8. End of a pass. A pass ends when all of its steps are done. The server drops an unfinished pass if
   no client wants it and some client wants another one. Until then the pass's readers wait at its
   end, since the batches of a client that dies are requeued.
9. New client. If no other client has its partition, a new client starts at the first epoch, and the
   server forgets the unfinished pass. With the option `resume` the client continues that pass. If
   there are other clients, it joins their pass, and Welcome says how much of the pass is left.
10. Reconnect. A client says Hello again after its connection or the server was replaced. Hello
    names the batches that the client holds and those that it consumed. The server requeues leases
    whose batches never arrived, and the client drops batches that it no longer leases.

Partitions per mode:

- `share` has one partition for all clients: each batch goes to exactly one of them.
- `share` with `clients: N` has one partition for each of N ranks. All have equally many steps, as
  the shards of a DataLoader have.
- `broadcast` has one partition per client: every client gets every batch. Clients in the same epoch
  stay within `hwm` batches of each other; silent clients do not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable

from gpupipe.errors import counted
from gpupipe.protocol import messages
from gpupipe.protocol.messages import WINDOW, Key
from gpupipe.server.client_state import Client, Refusal, Rules
from gpupipe.server.clients import Clients
from gpupipe.server.epoch_pass import EpochPass, Partition

Note = Callable[..., None]


class Leases(Clients):
    """All partitions, clients and leases of a server. It applies the rules at the head of the file.

    Every `now` is in seconds, of a monotonic clock.

    Args:
        rules: Mode, timeouts and limits.
        steps: Returns the number of steps of a pass, from (rank, epoch, position). Raises
            StateError.
        first: (epoch, position) where partitions begin.
        note: Logs an event that must survive the process.

    Attributes:
        outbox: (client token, message) pairs to send, in order.
        runs: Number of passes so far, which is the number of the next one.

    """

    def __init__(
        self,
        rules: Rules,
        steps: Callable[[int, int, int], int],
        first: tuple[int, int],
        note: Note = lambda *event: None,
    ) -> None:
        super().__init__(rules, first)
        self._steps, self._note = steps, note
        self.outbox: list[tuple[str, messages.ToClient]] = []
        self.runs = 0

    # --- sessions

    def is_old(self, hello: messages.Hello) -> bool:
        """Return whether this client already sent a later Hello, on another connection."""
        client = self.clients.get(hello.token)
        return client is not None and hello.number <= client.hello.number

    def hello(self, hello: messages.Hello, now: float, returns: bool = False) -> Client:
        """Open a client's session, or continue it after a reconnect. The caller sends the Welcome.

        Args:
            hello: The client's message.
            now: Seconds, of a monotonic clock.
            returns: Hello names this server's history: the client had a session here before.

        Raises:
            Refusal: The server has no room, or no partition, for this client.

        """
        client = self.clients.get(hello.token)
        if client is None:
            lane = self.lane_for(hello)
            if not (returns or self.rules.resume or self.members(lane)):
                self._drop_pass(lane)
            client = self.clients[hello.token] = Client(
                hello.token, hello, lane, min(hello.hwm, self.rules.hwm), now
            )
            client.late = not returns and self.late(client, now) is not None
            self._note(
                "client",
                hello.token,
                client.lane.name,
                hello.name,
                hello.place,
                hello.pid,
                hello.started,
            )
        client.hello, client.heard, client.quiet, client.revoked = hello, now, False, []
        client.pending = client.pending or client.run is not None
        client.leave_run()
        self._acknowledge(client, hello.done)
        self._reconcile(client, hello.holding)
        if hello.done:
            self._send(client, messages.Confirm(hello.done))
        return client

    def heard(self, token: str, now: float) -> bool:
        """Record a heartbeat, and revoke what a silent client lost. False if it has no session."""
        client = self.clients.get(token)
        if client is None:
            return False
        client.heard, client.quiet = now, False
        if client.revoked:
            self._send(client, messages.Revoke(client.revoked))
            client.revoked = []
        return True

    def tick(self, now: float, ended: Callable[[messages.Hello], bool]) -> None:
        """Apply the heartbeat timeout and the session timeout to all clients.

        Args:
            now: Seconds, of a monotonic clock.
            ended: Returns True if the client's process is known to have ended.

        """
        for client in list(self.clients.values()):
            silence = now - client.heard
            if silence > self.rules.lost or ended(client.hello):
                self.bye(client.token)
            elif silence > self.rules.silent and not client.quiet:
                client.quiet = True
                client.revoked = client.leases[WINDOW:]
                self._requeue(client, client.revoked)

    def part(self, token: str, done: list[Key]) -> None:
        """End a session at the client's request, after its last acknowledgements `done`."""
        client = self.clients.get(token)
        if client is not None:
            self._acknowledge(client, done)
            self.bye(token)

    def bye(self, token: str) -> None:
        """End a session and requeue all of its leases. Idempotent."""
        client = self.clients.pop(token, None)
        if client is None:
            return
        self._requeue(client, list(client.leases))
        self._note("gone", token)
        if self.rules.mode == "broadcast":
            self.lanes.pop(client.lane.name, None)
        self._settle_all()

    # --- iterations

    def begin(self, token: str, begin: messages.Begin) -> None:
        """Start a client's iteration: it enters a pass, or waits for one.

        Raises:
            Refusal: The position would take a pass from other clients, or the client's own pass
                was forgotten while it was away.
            StateError: There is no such epoch or position.

        """
        client = self.clients[token]
        client.leave_run()
        client.number, client.pending = begin.number, False
        run = client.lane.run
        if run is not None and client.late and begin.asked:
            # the user named this position: the rest of the current pass does not stand in for it
            client.begun.add(run.number)
        client.late = False
        goes_on = run is not None and (
            run.number == begin.run or client.entered == (begin.number, run.number)
        )
        self._requeue(
            client,
            [
                key
                for key in client.leases
                if not (goes_on and run is not None and key[0] == run.number)
            ],
        )
        if run is not None and not run.over and (goes_on or self._can_join(client, begin, run)):
            self._enter(client, run)
        elif 0 <= begin.run < client.lane.anew:
            raise Refusal(
                f"this client was not heard for over {self.rules.lost:g} s, and another has "
                "begun again since: connect again"
            )
        elif goes_on or (0 <= begin.run < self.runs and (run is None or begin.run <= run.number)):
            self._send(
                client, messages.Ended(begin.run if run is None or not goes_on else run.number)
            )
        else:
            self._steps(client.lane.rank, begin.epoch, begin.position)
            self._check_position(client, begin)
            client.wants = begin.epoch, begin.position
            self._settle_all()

    def stop(self, token: str) -> None:
        """End a client's iteration and requeue what it has not consumed."""
        client = self.clients[token]
        client.leave_run()
        client.pending = False
        self._requeue(client, list(client.leases))
        self._settle_all()

    def done(self, token: str, keys: list[Key]) -> None:
        """Acknowledge batches that a client's consumer is done with, and confirm that."""
        client = self.clients[token]
        self._acknowledge(client, keys)
        self._send(client, messages.Confirm(keys))

    def fail(self, run: int) -> list[Client]:
        """End the iterations of all readers of a pass after an error, and return these clients."""
        readers = [c for c in self.clients.values() if c.run == run]
        for client in readers:
            self.stop(client.token)
        return readers

    # --- batches

    def lease(self, key: Key) -> tuple[Client, bool] | None:
        """Lease a batch that is ready to the reader with the most credits.

        Returns:
            (client, is_last), or None if no reader has credits now. is_last: the client now leases
            all that is left of the pass, so this is the last batch that it gets.

        Raises:
            KeyError: No pass needs the batch any more.

        """
        lane = self.lane_of(key)
        if lane is None or lane.run is None or key[1] not in lane.run.making:
            raise KeyError(key)
        client = max(
            (c for c in self.members(lane) if c.run == key[0]),
            key=lambda c: c.credits,
            default=None,
        )
        if client is None or client.credits <= 0:
            return None
        lane.run.lease(key[1], client.token)
        client.leases.append(key)
        self._note("lease", *key, client.token)
        return client, lane.run.is_all_with(client.token)

    def left_out(self, key: Key) -> None:
        """Mark a batch as done of which no sample could be read."""
        self._finish(key)
        self._settle_all()

    def not_made(self, key: Key) -> None:
        """Requeue a step that was taken but produced no batch."""
        lane = self.lane_of(key)
        if lane is not None and lane.run is not None:
            lane.run.put_back(key[1])

    def take(self, lane: Partition) -> Key | None:
        """Take the next step of a partition to make. None if there is none."""
        return (
            None
            if lane.run is None or (step := lane.run.take()) is None
            else (lane.run.number, step)
        )

    # --- inside

    def _acknowledge(self, client: Client, keys: list[Key]) -> None:
        for key in keys:
            if key in client.leases:
                client.leases.remove(key)
            lane = self.lane_of(key)
            holder = lane.run.out.get(key[1]) if lane and lane.run else None
            if lane is client.lane and holder in (None, client.token):
                client.consumed += self._finish(key)
        self._settle_all()

    def _finish(self, key: Key) -> bool:
        lane = self.lane_of(key)
        finished = lane is not None and lane.run is not None and lane.run.finish(key[1])
        if finished:
            self._note("done", *key)
        return finished

    def _reconcile(self, client: Client, holding: list[Key]) -> None:
        """Reconcile leases with the batches that a client holds after a reconnect.

        Requeue leases of batches that it does not hold. Lease again those that were requeued and
        that the server has not started to make again.
        """
        self._requeue(client, [key for key in client.leases if key not in holding])
        still_leased, client.leases = set(client.leases), []
        run = client.lane.run
        for key in holding:
            is_renewed = (
                key not in still_leased
                and run is not None
                and key[0] == run.number
                and run.take_again(key[1], client.token)
            )
            if is_renewed:
                self._note("lease", *key, client.token)
            if is_renewed or key in still_leased:
                client.leases.append(key)

    def _requeue(self, client: Client, keys: list[Key]) -> None:
        for key in keys:
            client.leases.remove(key)
            lane = self.lane_of(key)
            if lane is not None and lane.run is not None:
                lane.run.give_back(key[1])
                self._note("back", *key)

    def _can_join(self, client: Client, begin: messages.Begin, run: EpochPass) -> bool:
        """Return whether a client joins the pass that others read now, though it asks for a whole
        earlier epoch. It does if it was paused or is new.
        """
        is_earlier = (
            not begin.asked and begin.run < 0 and begin.position == 0 and begin.epoch < run.epoch
        )
        return is_earlier and bool(self.inside(client.lane, run)) and run.number not in client.begun

    def _check_position(self, client: Client, begin: messages.Begin) -> None:
        """Raise Refusal if the position is available only by ending a pass that others read."""
        run = client.lane.run
        others = len(self.inside(client.lane, run)) if run is not None else 0
        if (
            run is None
            or not others
            or begin.epoch > run.epoch
            or (run.is_at(begin.epoch, begin.position) and run.number not in client.begun)
        ):
            return
        num_leased_or_done = len(run.done) + len(run.out)
        raise Refusal(
            f"epoch {begin.epoch} from sample {begin.position} on was asked for, but "
            f"{counted(others, 'other client')} of this server "
            f"share epoch {run.epoch} now, and "
            f"{num_leased_or_done:,} of its {run.steps:,} batches are "
            f"given out: go on with epoch {run.epoch + 1}, "
            "or serve with --mode broadcast or --clients N"
        )

    def _drop_pass(self, lane: Partition) -> None:
        """Forget the current pass, so that the partition starts from the beginning."""
        if lane.run is not None:
            lane.run, lane.anew = None, self.runs
            self._note("anew", lane.name, self.runs)

    def _settle_all(self) -> None:
        for lane in self.lanes.values():
            self._settle(lane)

    def _settle(self, lane: Partition) -> None:
        """End a pass that is complete, and start the one that clients wait for."""
        if lane.run is not None and lane.run.over:
            for client in self.inside(lane, lane.run):
                client.leave_run()
                client.between = True
                self._send(client, messages.Ended(lane.run.number))
        waiting = [c for c in self.members(lane) if c.wants is not None]
        if lane.run is not None and not lane.run.over:
            for client in waiting:
                if (
                    client.wants is not None
                    and lane.run.is_at(*client.wants)
                    and lane.run.number not in client.begun
                ):
                    self._enter(client, lane.run)
            if self.inside(lane, lane.run) or any(c.pending for c in self.members(lane)):
                return
        waiting = [c for c in waiting if c.wants is not None]
        if waiting and not self.must_wait(lane, min(c.wants for c in waiting if c.wants)[0]):
            self._begin_run(lane, waiting)

    def _begin_run(self, lane: Partition, waiting: list[Client]) -> None:
        epoch, position = min(c.wants for c in waiting if c.wants)
        lane.run = EpochPass(self.runs, epoch, position, self._steps(lane.rank, epoch, position))
        self.runs += 1
        self._note("run", lane.name, lane.run.number, epoch, position, lane.run.steps)
        for client in waiting:
            if client.wants == (epoch, position):
                self._enter(client, lane.run)

    def _enter(self, client: Client, run: EpochPass) -> None:
        client.wants, client.run = None, run.number
        client.begun.add(run.number)
        client.entered = client.number, run.number
        self._send(client, messages.Begun(client.number, run.number))

    def _send(self, client: Client, message: messages.ToClient) -> None:
        self.outbox.append((client.token, message))
