"""The data processing server.

1. Two threads: run() owns the socket, the producer (producer.py) makes batches. One lock guards
   what both use; its condition wakes the producer.
2. The leases decide the answer to every message (leases.py holds the rules of the protocol). Each
   decision is in the write-ahead log before the answer is sent.
3. A malformed message is counted and dropped. A message on a connection without a session is
   dropped, and answered with Who.
4. No peer can make the server's memory grow. Batches go only to clients that have credits. Long
   answers are rate-limited (limits.py). The server ends the session of a client whose queue of
   messages is full. It cuts a connection that sends more than a client needs (flood_guard.py).
5. If the engine fails, all clients get the error, and run() raises it. Clients that say Hello
   before the socket is closed get it too.
6. close() ends the producer and sends nothing: clients notice, and try to reconnect. The
   write-ahead log records the stop, unless an error caused it or stop(ends_run=False) was called.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from secrets import token_hex
from types import TracebackType
from typing import Any

import zmq

from gpupipe.engines.base import Batch
from gpupipe.errors import GpupipeError, SampleError, ServerError, StateError, counted
from gpupipe.loader import Loader
from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key
from gpupipe.protocol.wakeup import Waker
from gpupipe.sampling.sampler import Plan
from gpupipe.server.client_state import Client, Refusal
from gpupipe.server.flood_guard import Guard
from gpupipe.server.leases import Leases
from gpupipe.server.limits import Limits
from gpupipe.server.opening import listen, served
from gpupipe.server.options import ServerOptions
from gpupipe.server.plans import Plans
from gpupipe.server.producer import Producer
from gpupipe.server.sessions import Sessions
from gpupipe.server.write_ahead_log import WriteAheadLog

_TICK_MS = 250
_LOOK_MS = 50
_MAX_RECEIVES = 200
_FAREWELL_SECONDS = 5.0
"""Seconds to wait, after the engine failed, until all clients have acknowledged the error."""
_log = logging.getLogger("gpupipe")


class Server:
    """Serves the batches of a loader. Use it as a context manager, or call close().

    Args:
        loader: The loader to serve. Do not iterate it yourself meanwhile.
        options: How to serve.

    Attributes:
        address: The address it listens on, with the actual port.
        history: Names the sequence of passes. It stays the same over a restart that resumes.
        resumed: The server continues from its state file.
        malformed: Number of malformed messages so far.

    Raises:
        ConfigError: The samples cannot be split among the ranks.
        ServerError: The options are wrong, or the address or the state file cannot be used.
        StateError: The state file belongs to other data, another pipeline or other options.

    """

    def __init__(self, loader: Loader, options: ServerOptions | None = None) -> None:
        self.options = options or ServerOptions()
        self.options.check()
        self.loader, self.about = served(loader, self.options)
        self._plans = Plans(loader.config, loader.index, self.options.clients or 1)
        self._changed = threading.Condition()
        self._stopping, self._ends_run = False, True
        self._failure: messages.Failed | None = None
        self._uninformed: set[str] = set()
        self._ends_at = 0.0
        self._running = threading.Lock()
        self.malformed, self._limits = 0, Limits()
        self.started = time.monotonic()
        self.history = token_hex(16)
        self.resumed = False
        self._context, self._authenticator, self._socket = listen(self.options)
        try:
            self._wal = self._open_wal()
            self.ledger = self._new_leases()
        except BaseException:
            self._close_socket()
            raise
        self._waker, self._guard = Waker(), Guard(self._socket)
        self.sessions = Sessions(
            self.ledger, self.options.compress, self._waker.wake, self._changed
        )
        self._producer = Producer(
            self.loader.engine,
            self._plans,
            self.ledger,
            self._changed,
            self._deliver,
            self._on_failure,
        )
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    # --- running

    def run(self, each: Callable[[Server], None] = lambda server: None) -> None:
        """Serve until stop() is called.

        Args:
            each: Called about four times a second.

        Raises:
            Exception: The error that ended the producer.

        """
        with self._running:
            self._producer.start()
            self._loop(each)
            if self._producer.error is not None:
                raise self._producer.error

    def _loop(self, each: Callable[[Server], None]) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.descriptor, zmq.POLLIN)
        ticked = looked = 0.0
        while not self._stopping and not self._is_over():
            ready = dict(poller.poll(_LOOK_MS))
            if self._waker.descriptor in ready:
                self._waker.clear()
            if self._socket in ready:
                self._receive_some()
            self._send_all()
            if time.monotonic() - looked > _LOOK_MS / 1000:
                looked = time.monotonic()
                self._guard.look(looked)
            if time.monotonic() - ticked > _TICK_MS / 1000:
                ticked = time.monotonic()
                self._tick()
                each(self)
        self._send_all()

    def _is_over(self) -> bool:
        """Return whether the engine failed and all clients have acknowledged the error.

        A message sent right before the socket closes may not arrive: a client whose connection ends
        drops what it has not read.
        """
        return not self._producer.is_alive() and (
            not self._uninformed & set(self.sessions.of) or time.monotonic() > self._ends_at
        )

    def stop(self, ends_run: bool = True) -> None:
        """Make run() return. Safe to call from a signal handler or another thread.

        Args:
            ends_run: If False, the next server resumes from the state file, as after a crash.

        """
        self._ends_run = self._ends_run and ends_run
        self._stopping = True
        self._waker.wake()

    def close(self) -> None:
        """Wait for run() to return, then release port, threads and memory. Idempotent."""
        self.stop()
        with self._running:
            if not self._socket.closed:
                self._close()

    def _close(self) -> None:
        if self._producer.is_alive():
            self._producer.end()
        self._guard.close()
        self._close_socket()
        with self._changed:
            for token in list(self.sessions.of):
                self.sessions.close(token)
        if self._wal is not None:
            self._close_wal(self._wal)
        self.loader.close()
        self._waker.close()

    def _close_wal(self, wal: WriteAheadLog) -> None:
        if self._ends_run and self._producer.error is None:
            try:
                wal.stop()
            except ServerError as e:
                _log.warning("gpupipe: %s", e)
        wal.close()

    def _close_socket(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        self._socket.close(200)
        self._context.term()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._ends_run = False
        self.close()

    # --- state

    def _open_wal(self) -> WriteAheadLog | None:
        if self.options.state is None:
            return None
        config, index = self.loader.config, self.loader.index
        loader = config.loader.model_dump(
            mode="json", include={"batch_size", "shuffle", "seed", "last_batch", "shard"}
        )
        wal = WriteAheadLog(
            self.options.state,
            self.options.what(
                {
                    "data": index.fingerprint,
                    "pipeline": self.about["pipeline"]["fingerprint"],
                    **loader,
                }
            ),
        )
        if self.options.fresh:
            wal.forget()
        return wal

    def _new_leases(self) -> Leases:
        first = self.loader.sampler.epoch, self.loader.sampler.position
        if self._wal is None:
            return Leases(self.options.rules, self._plans.steps, first)
        leases = Leases(self.options.rules, self._plans.steps, first, self._wal.note)
        try:
            self.resumed = self._wal.resume(
                leases, self.history, time.monotonic(), self.options.resume
            )
        except BaseException:
            self._wal.close()
            raise
        self.history = self._wal.history
        return leases

    # --- the producer's calls

    def _deliver(self, client: Client, key: Key, plan: Plan, batch: Batch) -> None:
        self.sessions.send_batch(client.token, key, plan, batch)

    def _on_failure(self, error: Exception, clients: list[Client], final: bool) -> None:
        path, reason = (error.path, error.reason) if isinstance(error, SampleError) else ("", "")
        text = str(error) if isinstance(error, GpupipeError) else f"the server failed: {error!r}"
        failed = messages.Failed(
            type(error).__name__, text[:4000], path[:4000], reason[:4000], final
        )
        for client in clients:
            self.sessions.tell(client.token, failed)
        self.sessions.flush()
        if final:
            self._failure, self._ends_at = failed, time.monotonic() + _FAREWELL_SECONDS
            self._uninformed = {client.token for client in clients}
        else:
            _log.warning("gpupipe: %s got an error: %s", counted(len(clients), "client"), text)

    # --- the socket

    def _receive_some(self) -> None:
        with self._changed:
            for _ in range(_MAX_RECEIVES):
                try:
                    route, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                try:
                    self._handle(route, messages.from_client(frames))
                except messages.MalformedMessage:
                    self.malformed += 1
            self.sessions.flush()
            self._changed.notify_all()

    def _handle(self, route: bytes, message: messages.ToServer) -> None:
        token = self.sessions.tokens.get(route)
        if isinstance(message, messages.Ask | messages.Hello) and not self._limits.allow(
            route, time.monotonic()
        ):
            return
        if isinstance(message, messages.Ask):
            self._answer(route, messages.State(self._facts()))
        elif isinstance(message, messages.Hello):
            self._on_hello(route, message)
        elif isinstance(message, messages.Bye):
            self.ledger.part(message.token, message.done)
            self._answer(route, messages.Gone())
        elif token is None or not self.ledger.heard(token, time.monotonic()):
            self._answer(route, messages.Who())
        else:
            self._on_message(token, message)

    def _on_hello(self, route: bytes, hello: messages.Hello) -> None:
        if hello.version != messages.VERSION:
            why = (
                f"the server speaks version {messages.VERSION} of the protocol, and this client "
                f"version {hello.version}: use the same gpupipe on both sides"
            )
            self._answer(route, messages.Refused(why, False))
            return
        if self._failure is not None:
            self._answer(route, self._failure)
            return
        if self.ledger.is_old(hello):
            return
        now = time.monotonic()
        self.ledger.tick(now, self.sessions.ended)  # no new client joins a pass of dead clients
        try:
            client = self.ledger.hello(hello, now, hello.history == self.history)
        except Refusal as e:
            self._answer(route, messages.Refused(str(e), e.again))
            return
        self.sessions.open(route, hello, client.hwm)
        epoch, position = self.ledger.place(client)
        late = self.ledger.late(client, now) if client.late else None
        rank, world = self._plans.global_rank(client.lane.rank), self._plans.world
        welcome = messages.Welcome(
            messages.VERSION,
            self.history,
            os.getpid(),
            client.leases,
            epoch,
            position,
            rank,
            world,
            self.about,
            late,
        )
        self._answer(route, welcome)

    def _on_message(self, token: str, message: messages.ToServer) -> None:
        if isinstance(message, messages.Done):
            session = self.sessions.of[token]
            for slot in message.slots if session.slots is not None else ():
                session.slots.give_back(slot)  # type: ignore[union-attr]  # there are slots
            if message.keys:
                self.ledger.done(token, message.keys)
        elif isinstance(message, messages.Ping):
            self.sessions.tell(token, messages.Pong())
        elif isinstance(message, messages.Stop):
            self.ledger.stop(token)
            self._uninformed.discard(token)
        elif isinstance(message, messages.Begin):
            try:
                self.ledger.begin(token, message)
            except (Refusal, StateError) as e:
                self.sessions.tell(token, messages.Refused(str(e)[:4000], False))

    def _answer(self, route: bytes, message: messages.ToClient) -> None:
        self.sessions.out.append((route, [messages.encode(message)]))

    def _send_all(self) -> None:
        out = self.sessions.out
        while out:
            route, frames = out.popleft()
            try:
                self._socket.send_multipart([route, *frames], zmq.NOBLOCK, copy=False)
            # The client does not read. It cannot continue without this message: end its session.
            except zmq.Again:
                with self._changed:
                    self.ledger.bye(self.sessions.tokens.get(route, ""))
                    self.sessions.flush()
            except zmq.ZMQError as e:
                if e.errno != zmq.EHOSTUNREACH:
                    raise

    def _tick(self) -> None:
        with self._changed:
            self.ledger.tick(time.monotonic(), self.sessions.ended)
            self.sessions.flush()
            self._changed.notify_all()

    def facts_now(self) -> dict[str, Any]:
        """Return the facts that `gpupipe status` shows. Takes the lock, for other threads."""
        with self._changed:
            return self._facts()

    def _facts(self) -> dict[str, Any]:
        sent, now = self.sessions.sent, time.monotonic()
        lanes = [
            {
                "rank": lane.rank,
                "epoch": lane.run.epoch,
                "position": lane.run.position,
                "done": len(lane.run.done),
                "steps": lane.run.steps,
            }
            for lane in self.ledger.lanes.values()
            if lane.run is not None
        ]
        return {
            "name": self.about["name"],
            "mode": self.options.mode,
            "pid": os.getpid(),
            "seconds": round(now - self.started, 3),
            "batches": sent.batches,
            "bytes": sent.bytes,
            "shared": sent.shared,
            "malformed": self.malformed,
            "cut": self._guard.cut,
            "hwm": self.options.hwm,
            **self._producer.facts(),
            "queued": len(self.sessions.out),
            "lanes": lanes,
            "clients": list(self.ledger.facts(now)),
        }
