"""A client's connection to one server: a thread that receives, says Hello again where it must, and keeps batches until the consumer asks.

1. Only the thread touches the socket. The consumer's calls leave messages in `_say` and wake it.
2. What both use is under `_changed`, a condition that is notified whenever the consumer may have to look.
3. A batch is finished (steps of the client, copy to its device) in the thread, so that the consumer only takes it.
4. Where nothing was heard for `patience` seconds, the consumer's call ends with an error; the thread goes on trying to reach the server.
5. close() says Bye and ends the thread; so does the end of the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import zmq
from torch import Tensor

from gpupipe.errors import GpupipeError, ServerError
from gpupipe.link import codecs, wire
from gpupipe.link.dialing import LINGER_MS, Options, dial, error_of, greeting
from gpupipe.link.holding import Holding
from gpupipe.link.memory import Buffers, Mapped, started
from gpupipe.link.tensors import views
from gpupipe.link.wire import Key

BEAT = 1.0
_SOON = 0.05
_IN_A_ROW = 64
Finish = Callable[[dict[str, Tensor]], Any]


@dataclass(frozen=True)
class Arrived:
    """A batch as `finish` left it, and where it is in the epoch."""

    key: Key
    epoch: int
    end: int
    last: bool
    batch: Any


@dataclass
class _Coming:
    """A batch of which parts are missing."""

    head: wire.Batch
    memory: Tensor
    missing: int
    behind: int = 0


class Connection:
    """See the head of this module. finish: what is done to the tensors of a batch before the consumer gets it."""

    def __init__(self, options: Options, finish: Finish) -> None:
        self.options, self._finish = options, finish
        self.welcome: wire.Welcome | None = None
        self._hello = greeting(options)
        self._changed = threading.Condition()
        self._holding: Holding[Arrived] = Holding()
        self._say: deque[wire.ToServer] = deque()
        self._error: GpupipeError | None = None
        self._number, self._run, self._ended, self._shared = 0, -1, False, options.transport != "tcp"
        self._place: tuple[int, int] | None = None
        self._coming: _Coming | None = None
        self._mapped = Mapped(0)
        self._buffers = Buffers(options.hwm + 2, options.pinned)
        self._began = self._heard = time.monotonic()
        self._said_hello = 0.0
        self._closing = False
        self._context = zmq.Context(io_threads=2)
        self._socket = dial(self._context, options)
        self._wake_out, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run_thread, name=f"gpupipe {options.address}", daemon=True)
        self._thread.start()

    # --- what the consumer calls

    def open(self) -> wire.Welcome:
        """Wait until the server knows us. Raises ServerError."""
        with self._changed:
            self._wait(lambda: self.welcome is not None)
        assert self.welcome is not None
        return self.welcome

    def begin(self, epoch: int, position: int) -> None:
        """Begin an iteration at a place. Where a run ended before it, the one behind it is begun already."""
        with self._changed:
            if not (self._ended and self._place == (epoch, position)):
                self._begin(epoch, position)
            self._ended = False

    def _begin(self, epoch: int, position: int) -> None:
        self._number += 1
        self._place, self._run, self._error = (epoch, position), -1, None
        self._holding.drop()
        self._post(wire.Begin(self._number, epoch, position, -1))

    @property
    def epoch(self) -> int:
        """The epoch that is read, and behind the end of a run the one behind it."""
        with self._changed:
            return self._place[0] if self._place is not None else 0

    def next(self) -> Arrived | None:
        """The next batch; None when the run is over. Raises ServerError, and what the server's pipeline raised."""
        with self._changed:
            found: list[tuple[Key, Arrived]] = []

            def ready() -> bool:
                taken = None if self._ended else self._holding.take()
                found.extend([taken] if taken else [])
                return bool(found) or self._ended

            self._wait(ready)
            if not found:
                return None
            arrived = found[0][1]
            self._place = arrived.epoch, arrived.end
            return arrived

    def consumed(self, key: Key) -> None:
        """The consumer is done with a batch."""
        with self._changed:
            if self._holding.consume(key):
                self._post(wire.Done([key], self._freed()))

    def stop(self) -> None:
        """End the iteration; what was not consumed goes back."""
        with self._changed:
            if self._place is not None:
                self._place, self._run, self._ended = None, -1, False
                self._holding.drop()
                self._post(wire.Stop())

    def close(self) -> None:
        """Say good-bye, and end the thread. May be called twice."""
        with self._changed:
            if self._closing:
                return
            self._holding.drop()
            self._post(wire.Bye())
            self._closing = True
        self._wake()
        self._thread.join()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Until `ready`, under the lock. Raises the error that came, and ServerError where the server is silent or this is closed."""
        since = time.monotonic()
        while not ready():
            if self._error is not None:
                raise self._error
            if self._closing:
                raise ServerError(f"the connection to {self.options.address} was closed")
            silence = time.monotonic() - max(since, self._heard)
            if silence > self.options.patience:
                raise ServerError(
                    f"{self.options.address} was silent for {silence:.0f} s: is a server running there ('gpupipe status {self.options.address}'), "
                    "can it be reached, and are the keys right?"
                )
            self._changed.wait(min(BEAT, self.options.patience))

    def _post(self, message: wire.ToServer) -> None:
        self._say.append(message)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_in, b"1")

    def _freed(self) -> list[int]:
        freed: list[int] = []
        while self._mapped.freed and len(freed) < 100:
            freed.append(self._mapped.freed.popleft())
        return freed

    # --- the thread

    def _run_thread(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        beat = 0.0
        try:
            while not (self._closing and not self._say):
                if time.monotonic() >= beat:
                    beat = time.monotonic() + (BEAT if self._beat() else _SOON)
                ready = dict(poller.poll(max(0, int(1000 * (beat - time.monotonic())))))
                if self._wake_out in ready:
                    os.read(self._wake_out, 4096)
                self._send_all()
                if self._socket in ready:
                    self._receive_some()
        except BaseException as e:
            self._fail(ServerError(f"the connection to {self.options.address} failed: {e!r}"))
            raise
        finally:
            self._socket.close(LINGER_MS)
            self._context.term()

    def _beat(self) -> bool:
        """A sign of life. False where nobody is connected to hear it."""
        if self.welcome is None:
            return self._say_hello()
        freed = self._freed()
        return self._send(wire.Done([], freed) if freed else wire.Ping())

    def _say_hello(self) -> bool:
        with self._changed:
            holding, done = self._holding.keys, list(self._holding.unconfirmed)
        self._said_hello = time.monotonic()
        return self._send(self._hello(self._shared, holding, done))

    def _send_all(self) -> None:
        while self._say:
            self._send(self._say.popleft())

    def _send(self, message: wire.ToServer) -> bool:
        """What cannot be sent now is said in a Hello later on."""
        with suppress(zmq.Again):
            self._socket.send(wire.encode(message), zmq.NOBLOCK)
            return True
        return False

    def _receive_some(self) -> None:
        for _ in range(_IN_A_ROW):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._heard = time.monotonic()
            try:
                self._handle(wire.from_server([f.buffer for f in frames]), frames)
            except wire.Malformed as e:
                self._fail(ServerError(f"{self.options.address} does not speak as a server of gpupipe does: {e}"))

    def _handle(self, message: wire.ToClient, frames: list[Any]) -> None:
        if isinstance(message, wire.Part):
            self._on_part(message, frames[1].buffer)
        elif isinstance(message, wire.Batch):
            self._on_batch(message)
        elif isinstance(message, wire.Who):
            self._on_who()
        elif isinstance(message, wire.Welcome):
            self._on_welcome(message)
        else:
            with self._changed:
                self._on_news(message)
                self._changed.notify_all()

    def _on_news(self, message: wire.ToClient) -> None:
        if isinstance(message, wire.Confirm):
            self._holding.confirm(message.keys)
        elif isinstance(message, wire.Revoke):
            self._holding.revoke(message.keys)
        elif isinstance(message, wire.Begun):
            if message.number == self._number and self._place is not None:
                self._run = message.run
        elif isinstance(message, wire.Ended):
            self._on_ended(message.run)
        elif isinstance(message, wire.Failed):
            self._error = error_of(message)
        elif isinstance(message, wire.Refused) and (not message.again or time.monotonic() - self._began > self.options.patience):
            self._error = ServerError(f"{self.options.address}: {message.why}")

    def _on_ended(self, run: int) -> None:
        """The run is over: the next one begins, so that its batches are here when they are asked for."""
        if run == self._run and self._place is not None:
            self._begin(self._place[0] + 1, 0)
            self._ended = True

    def _on_who(self) -> None:
        """The server does not know us, or not this connection. One Hello at a time."""
        if time.monotonic() - self._said_hello > BEAT / 4:
            self._say_hello()

    def _on_welcome(self, message: wire.Welcome) -> None:
        if message.version != wire.VERSION:
            self._fail(ServerError(f"{self.options.address} speaks version {message.version} of the protocol, and this is version {wire.VERSION}"))
            return
        with self._changed:
            same = self.welcome is not None and self.welcome.history == message.history
            self.welcome = message
            self._coming = None
            self._mapped = Mapped(message.pid)
            if same:
                self._holding.keep_only(message.yours)
            else:
                self._holding = Holding()
            if self._place is not None:
                self._post(wire.Begin(self._number, *self._place, self._run if same else -1))
            self._changed.notify_all()

    def _on_batch(self, head: wire.Batch) -> None:
        if head.slot is not None:
            self._on_slot(head, head.slot)
            return
        missing = sum(field.nbytes for field in head.fields)
        self._coming = _Coming(head, self._buffers.take(head.size), missing)
        self._complete()

    def _on_slot(self, head: wire.Batch, slot: wire.Slot) -> None:
        """Where a living server's slot cannot be opened, batches come over the socket from now on."""
        try:
            memory = self._mapped.tensor(slot, head.size)
        except wire.Malformed:
            self._shared = not started(self._mapped.pid)
            self._say_hello()
            return
        self._arrived(head, memory)

    def _on_part(self, part: wire.Part, data: Any) -> None:
        coming = self._coming
        if coming is None or part.key != coming.head.key:  # of a batch whose beginning went to a connection that is no more
            return
        if part.offset < coming.behind or part.offset + part.size > coming.head.size:
            raise wire.Malformed(f"a piece at byte {part.offset}, behind byte {coming.behind} of {coming.head.size}")
        coming.memory.numpy().data[part.offset : part.offset + part.size] = codecs.unpack(part.codec, data, part.size)
        coming.behind, coming.missing = part.offset + part.size, coming.missing - part.size
        self._complete()

    def _complete(self) -> None:
        if self._coming is not None and self._coming.missing <= 0:
            coming, self._coming = self._coming, None
            self._arrived(coming.head, coming.memory)

    def _arrived(self, head: wire.Batch, memory: Tensor) -> None:
        if head.key[0] != self._run:  # of an iteration that was ended meanwhile
            return
        try:
            batch = self._finish(views(memory, head.fields))
        except GpupipeError as e:
            self._fail(e)
            return
        with self._changed:
            if head.key[0] == self._run:
                self._holding.arrive(head.key, Arrived(head.key, head.epoch, head.end, head.last, batch))
                self._changed.notify_all()

    def _fail(self, error: GpupipeError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
