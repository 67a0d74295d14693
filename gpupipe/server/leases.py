"""Who has which batch: the server's half of the protocol, without sockets, threads or clocks of its
own.

The rules, which make every batch of an epoch be consumed once:

1. A batch is a step of a run; a run is one pass over an epoch, or over what is left of it, on a
   lane. All plans of a run are known when it begins, so a batch that is lost is made again from its
   plan, with the same samples and draws.
2. A batch that is handed to a client is leased to it: noted down (journal.py) before it is sent,
   and given to nobody else while the lease lasts.
3. A client says Done when its consumer asks for the next batch. That is noted down, and then
   confirmed.
4. A client hands a batch to its consumer only while fewer than WINDOW batches before it are
   unconfirmed (holding.py). So whatever its consumer may have seen is among the first WINDOW of its
   leases.
5. A client that was not heard for `silent` seconds loses its leases behind the first WINDOW, and
   learns so (Revoke) before anything else when it is heard again. By 4 its consumer cannot have
   seen them.
6. The first WINDOW leases go to others only when the client is gone for certain: it said Bye, its
   process on this machine has ended, or it was not heard for `lost` seconds. Where it comes back
   even then, what it consumed counts as long as nobody else has got it: only beyond `lost` can a
   batch be consumed twice by clients that both live.
7. A run is over when all its steps are done, or when nobody wants it any more and somebody wants
   another. Until then its readers wait at its end, since a batch may still come back from one that
   dies.
8. A new client that finds no other on its lane begins anew, with the first epoch; what was left of
   the run there is forgotten. With `resume` it goes on with it. One that finds others takes part in
   what they read, and is told how much of it is gone.
9. A client says Hello again when its connection or the server was new: it names what it holds and
   what it has done. What was leased to it and never arrived goes back; what it holds and is no
   longer its own, it drops.

Lanes: `share` has one that all clients read, so that a batch goes to exactly one of them; with
`clients: N` it has one for each of N ranks, with equal steps, as a DataLoader's shards have;
`broadcast` has one for every client, so that all get everything, and those in one epoch keep
together.
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
    """All lanes, clients and leases. Messages to send gather in `outbox` as (token, message), in
    order.

    steps: how many steps a run has, of (rank, epoch, position); it raises StateError. first: where
    lanes begin. note: gets every event that must outlive the process. now, where it is asked for,
    is of a clock that only goes forward.
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

    # --- clients come and go

    def is_old(self, hello: messages.Hello) -> bool:
        """Whether a later Hello of this client was heard already, on another connection."""
        known = self.clients.get(hello.token)
        return known is not None and hello.number <= known.hello.number

    def hello(self, hello: messages.Hello, now: float, returns: bool = False) -> Client:
        """Know a client, again or for the first time. Its Welcome is for the caller to send.
        returns: whether it was a client of this server before, though it is not known any more.
        Raises Refusal.
        """
        known = self.clients.get(hello.token)
        if known is None:
            lane = self.lane_for(hello)
            if not (returns or self.rules.resume or self.members(lane)):
                self._forget_run(lane)
            known = self.clients[hello.token] = Client(
                hello.token, hello, lane, min(hello.hwm, self.rules.hwm), now
            )
            known.late = not returns and self.late(known, now) is not None
            self._note(
                "client",
                hello.token,
                known.lane.name,
                hello.name,
                hello.place,
                hello.pid,
                hello.started,
            )
        known.hello, known.heard, known.quiet, known.revoked = hello, now, False, []
        known.pending = known.pending or known.run is not None
        known.leave_run()
        self._take_done(known, hello.done)
        self._keep_only(known, hello.holding)
        if hello.done:
            self._say(known, messages.Confirm(hello.done))
        return known

    def heard(self, token: str, now: float) -> bool:
        """A sign of life. False where the client is not known."""
        client = self.clients.get(token)
        if client is None:
            return False
        client.heard, client.quiet = now, False
        if client.revoked:
            self._say(client, messages.Revoke(client.revoked))
            client.revoked = []
        return True

    def tick(self, now: float, ended: Callable[[messages.Hello], bool]) -> None:
        """Look at who was not heard for long.

        ended: whether the process of a client is known to be no more.
        """
        for client in list(self.clients.values()):
            silence = now - client.heard
            if silence > self.rules.lost or ended(client.hello):
                self.bye(client.token)
            elif silence > self.rules.silent and not client.quiet:
                client.quiet = True
                client.revoked = client.leases[WINDOW:]
                self._give_back(client, client.revoked)

    def part(self, token: str, done: list[Key]) -> None:
        """A client says good-bye, and what it has consumed that was not confirmed."""
        client = self.clients.get(token)
        if client is not None:
            self._take_done(client, done)
            self.bye(token)

    def bye(self, token: str) -> None:
        """A client is gone; all that it had goes back."""
        client = self.clients.pop(token, None)
        if client is None:
            return
        self._give_back(client, list(client.leases))
        self._note("gone", token)
        if self.rules.mode == "broadcast":
            self.lanes.pop(client.lane.name, None)
        self._settle_all()

    # --- iterations

    def begin(self, token: str, begin: messages.Begin) -> None:
        """A client's iteration begins. Raises Refusal, StateError."""
        client = self.clients[token]
        client.leave_run()
        client.number, client.pending = begin.number, False
        run = client.lane.run
        if run is not None and client.late and begin.asked:
            client.begun.add(run.number)  # so that it does not get the rest in place of the whole
        client.late = False
        goes_on = run is not None and (
            run.number == begin.run or client.entered == (begin.number, run.number)
        )
        self._give_back(
            client,
            [
                key
                for key in client.leases
                if not (goes_on and run is not None and key[0] == run.number)
            ],
        )
        if run is not None and not run.over and (goes_on or self._joins(client, begin, run)):
            self._enter(client, run)
        elif 0 <= begin.run < client.lane.anew:
            raise Refusal(
                f"this client was not heard for over {self.rules.lost:g} s, and another has "
                "begun anew since: connect again"
            )
        elif goes_on or (0 <= begin.run < self.runs and (run is None or begin.run <= run.number)):
            self._say(
                client, messages.Ended(begin.run if run is None or not goes_on else run.number)
            )
        else:
            self._steps(client.lane.rank, begin.epoch, begin.position)
            self._refuse_what_others_bar(client, begin)
            client.wants = begin.epoch, begin.position
            self._settle_all()

    def stop(self, token: str) -> None:
        """A client's iteration ended; what it has not consumed goes back."""
        client = self.clients[token]
        client.leave_run()
        client.pending = False
        self._give_back(client, list(client.leases))
        self._settle_all()

    def done(self, token: str, keys: list[Key]) -> None:
        """A client's consumer is done with these."""
        client = self.clients[token]
        self._take_done(client, keys)
        self._say(client, messages.Confirm(keys))

    def fail(self, run: int) -> list[Client]:
        """The readers of a run, for whom an error is; their iterations end."""
        readers = [c for c in self.clients.values() if c.run == run]
        for client in readers:
            self.stop(client.token)
        return readers

    # --- batches

    def lease(self, key: Key) -> tuple[Client, bool] | None:
        """Give a batch that is made to the reader with most room: None where nobody has any now.
        Raises KeyError where it is not wanted any more.

        With the client comes whether it now has all that is left of the run, so that this batch is
        the last that it gets.
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
        """A batch has no sample that could be read: it counts as consumed."""
        self._finish(key)
        self._settle_all()

    def not_made(self, key: Key) -> None:
        """A plan that was taken came to nothing: it is to be made again."""
        lane = self.lane_of(key)
        if lane is not None and lane.run is not None:
            lane.run.put_back(key[1])

    def take(self, lane: Partition) -> Key | None:
        """The next step of a lane that is to be made, which is then under way."""
        return (
            None
            if lane.run is None or (step := lane.run.take()) is None
            else (lane.run.number, step)
        )

    # --- inside

    def _take_done(self, client: Client, keys: list[Key]) -> None:
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

    def _keep_only(self, client: Client, holding: list[Key]) -> None:
        """Settle what a client holds: what it lacks goes back, and what went back and nobody has
        got yet is its own again.
        """
        self._give_back(client, [key for key in client.leases if key not in holding])
        kept, client.leases = set(client.leases), []
        run = client.lane.run
        for key in holding:
            again = (
                key not in kept
                and run is not None
                and key[0] == run.number
                and run.take_again(key[1], client.token)
            )
            if again:
                self._note("lease", *key, client.token)
            if again or key in kept:
                client.leases.append(key)

    def _give_back(self, client: Client, keys: list[Key]) -> None:
        for key in keys:
            client.leases.remove(key)
            lane = self.lane_of(key)
            if lane is not None and lane.run is not None:
                lane.run.give_back(key[1])
                self._note("back", *key)

    def _joins(self, client: Client, begin: messages.Begin, run: EpochPass) -> bool:
        """Whether a client that asks for a whole epoch is given what others read now, which is
        further on: it was paused, or is new.
        """
        behind = (
            not begin.asked and begin.run < 0 and begin.position == 0 and begin.epoch < run.epoch
        )
        return behind and bool(self.inside(client.lane, run)) and run.number not in client.begun

    def _refuse_what_others_bar(self, client: Client, begin: messages.Begin) -> None:
        """Raises Refusal where others read the lane at a place that this one could only leave by
        taking it from them.
        """
        run = client.lane.run
        others = len(self.inside(client.lane, run)) if run is not None else 0
        if (
            run is None
            or not others
            or begin.epoch > run.epoch
            or (run.is_at(begin.epoch, begin.position) and run.number not in client.begun)
        ):
            return
        given = len(run.done) + len(run.out)
        raise Refusal(
            f"epoch {begin.epoch} from sample {begin.position} on was asked for, but "
            f"{counted(others, 'other client')} of this server "
            f"share epoch {run.epoch} now, and {given:,} of its {run.steps:,} batches are "
            f"given out: go on with epoch {run.epoch + 1}, "
            "or serve with --mode broadcast or --clients N"
        )

    def _forget_run(self, lane: Partition) -> None:
        if lane.run is not None:
            lane.run, lane.anew = None, self.runs
            self._note("anew", lane.name, self.runs)

    def _settle_all(self) -> None:
        for lane in self.lanes.values():
            self._settle(lane)

    def _settle(self, lane: Partition) -> None:
        """End a run that is over, and begin the one that is wanted."""
        if lane.run is not None and lane.run.over:
            for client in self.inside(lane, lane.run):
                client.leave_run()
                client.between = True
                self._say(client, messages.Ended(lane.run.number))
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
        self._say(client, messages.Begun(client.number, run.number))

    def _say(self, client: Client, message: messages.ToClient) -> None:
        self.outbox.append((client.token, message))
