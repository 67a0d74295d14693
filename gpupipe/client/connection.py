"""A client's connection to one server: a thread that receives, says Hello again where it must, and
keeps batches until the consumer asks.

1. Only the thread touches the socket. The consumer's calls leave messages in `_say` and wake it.
2. What both use is under `_changed`, a condition that is notified whenever the consumer may have to
   look.
3. A batch is finished (steps of the client, copy to its device) in the thread, so that the consumer
   only takes it.
4. Where nothing was heard for `patience` seconds, the consumer's call ends with an error; the
   thread goes on trying to reach the server.
5. Between a Hello and its Welcome no batch counts: what the Hello did not name, the server takes
   back.
6. close() says Bye until the server has heard it, also one that comes back just then, and ends the
   thread; so does the end of the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import zmq
from torch import Tensor

from gpupipe.client.dialing import LINGER_MS, ConnectionOptions, dial, error_of, greeting
from gpupipe.client.inbox import Inbox
from gpupipe.client.reassembly import Assembly
from gpupipe.errors import GpupipeError, ServerError
from gpupipe.protocol import messages, peer
from gpupipe.protocol.messages import Key
from gpupipe.protocol.tensors import views
from gpupipe.protocol.wakeup import Waker

BEAT = 1.0
_SOON = 0.05
_PARTING = 2.0
_IN_A_ROW = 64
_TELL_AFTER = 3.0
"""Seconds after which open() says what it waits for."""
_log = logging.getLogger("gpupipe")
Finish = Callable[[dict[str, Tensor]], Any]


@dataclass(frozen=True)
class Arrived:
    """A batch as `finish` left it, and where it is in the epoch."""

    key: Key
    epoch: int
    end: int
    last: bool
    batch: Any


class Connection:
    """See the head of this module.

    finish: what is done to the tensors of a batch before the consumer gets it.
    """

    def __init__(self, options: ConnectionOptions, finish: Finish) -> None:
        self.options, self._finish = options, finish
        self.welcome: messages.Welcome | None = None
        self._token = token_hex(16)
        self._hello, self._greeted, self._gone = greeting(options, self._token), False, False
        self._changed = threading.Condition()
        self._holding: Inbox[Arrived] = Inbox()
        self._say: deque[messages.ToServer] = deque()
        self._error: GpupipeError | None = None
        self._broken: GpupipeError | None = None
        """Why the thread ended, where it was not asked to."""
        self._final: GpupipeError | None = None
        """What a server ended with: every iteration fails so until a server says Welcome again."""
        self._refusal = ""
        self._number, self._run, self._ended, self._shared = (
            0,
            -1,
            False,
            options.transport != "tcp",
        )
        self._place: tuple[int, int] | None = None
        self._asked = False
        self._assembly = Assembly(options.hwm + 2, options.gpu)
        self._began = self._heard = time.monotonic()
        self._said_hello = 0.0
        self._closing = False
        self._context = zmq.Context(io_threads=2)
        self._socket = dial(self._context, options)
        self._waker = Waker()
        self._thread = threading.Thread(
            target=self._run_thread, name=f"gpupipe {options.address}", daemon=True
        )
        self._thread.start()

    # --- what the consumer calls

    def open(self) -> messages.Welcome:
        """Wait until the server knows us.

        After three seconds, log once what is waited for. Raises ServerError.
        """
        since = time.monotonic()
        if self.options.patience > _TELL_AFTER and not self._is_answered(_TELL_AFTER):
            self._tell_what_is_waited_for()
        with self._changed:
            self._wait(lambda: self.welcome is not None, since)
        assert self.welcome is not None
        return self.welcome

    def _is_answered(self, seconds: float) -> bool:
        """Wait for a Welcome, an error or the end."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.welcome is not None or self._error is not None or self._closing,
                seconds,
            )

    def _tell_what_is_waited_for(self) -> None:
        """Raises ServerError if what listens at the address is no server of gpupipe."""
        options = self.options
        why = self._refusal or peer.check(options.address, options.key is not None).text
        _log.warning(
            "gpupipe: waiting for the server at %s for up to %g s: %s",
            options.address,
            options.patience,
            why,
        )

    def begin(self, epoch: int, position: int, asked: bool = False) -> None:
        """Begin an iteration at a place.

        Where a run ended before it, the one after it is begun already. asked: whether the user
        named the place.
        """
        with self._changed:
            if not (self._ended and self._place == (epoch, position)):
                self._begin(epoch, position, asked)
            self._ended = False

    def _begin(self, epoch: int, position: int, asked: bool = False) -> None:
        self._number += 1
        self._asked = asked
        self._place, self._run, self._error = (epoch, position), -1, self._final
        self._holding.drop()
        self._post(messages.Begin(self._number, epoch, position, -1, asked))

    @property
    def epoch(self) -> int:
        """The epoch that is read, and behind the end of a run the one behind it."""
        with self._changed:
            return self._place[0] if self._place is not None else 0

    def next(self) -> Arrived | None:
        """The next batch; None when the run is over.

        Raises ServerError, and what the server's pipeline raised.
        """
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
                self._post(messages.Done([key], self._assembly.freed()))

    def stop(self) -> None:
        """End the iteration; what was not consumed goes back."""
        with self._changed:
            if self._place is not None:
                self._place, self._run, self._ended = None, -1, False
                self._holding.drop()
                self._post(messages.Stop())

    def close(self) -> None:
        """Say good-bye, and end the thread. May be called twice."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._holding.drop()
            self._changed.notify_all()
        self._waker.wake()
        self._thread.join()
        self._waker.close()

    def _wait(self, ready: Callable[[], bool], since: float | None = None) -> None:
        """Until `ready`, under the lock. since: when the waiting began, by default now.

        Raises the error that came, and ServerError where the server is silent or this is closed.
        """
        since = time.monotonic() if since is None else since
        while not ready():
            error = self._error or self._broken
            if error is not None:
                raise error
            if self._closing:
                raise ServerError(f"the connection to {self.options.address} was closed")
            silence = time.monotonic() - max(since, self._heard)
            if silence > self.options.patience:
                raise ServerError(
                    f"{self.options.address} was silent for {silence:.0f} s: is a server "
                    f"running there ('gpupipe status {self.options.address}'), "
                    "can it be reached, and are the keys right?"
                )
            self._changed.wait(min(BEAT, self.options.patience))

    def _post(self, message: messages.ToServer) -> None:
        self._say.append(message)
        self._waker.wake()

    # --- the thread

    def _run_thread(self) -> None:
        try:
            self._serve()
            self._part()
        except Exception as e:
            self._broken = self._caused(f"the connection to {self.options.address} failed", e)
            self._fail(self._broken)
        finally:
            self._socket.close(LINGER_MS)
            self._context.term()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.descriptor, zmq.POLLIN)
        beat = 0.0
        while not self._closing:
            if time.monotonic() >= beat:
                beat = time.monotonic() + (BEAT if self._beat() else _SOON)
            ready = dict(poller.poll(max(0, int(1000 * (beat - time.monotonic())))))
            if self._waker.descriptor in ready:
                self._waker.clear()
            self._send_all()
            if self._socket in ready:
                self._receive_some()

    def _part(self) -> None:
        """Say Bye, on whatever connection there is, until it is answered, or nobody answers."""
        until, again = time.monotonic() + _PARTING, 0.0
        bye = messages.Bye(self._token, list(self._holding.unconfirmed))
        while self.welcome is not None and not self._gone and time.monotonic() < until:
            if time.monotonic() >= again:
                again = time.monotonic() + (BEAT / 4 if self._send(bye) else _SOON)
            if self._socket.poll(int(1000 * _SOON)):
                self._receive_some()

    def _beat(self) -> bool:
        """A sign of life. False where nobody is connected to hear it."""
        if self.welcome is None:
            return self._say_hello()
        freed = self._assembly.freed()
        return self._send(messages.Done([], freed) if freed else messages.Ping())

    def _say_hello(self) -> bool:
        with self._changed:
            holding, done = self._holding.keys, list(self._holding.unconfirmed)
            history = self.welcome.history if self.welcome is not None else ""
        self._said_hello, self._greeted = time.monotonic(), False
        self._assembly.drop()
        return self._send(self._hello(self._shared, holding, done, history))

    def _send_all(self) -> None:
        while self._say:
            self._send(self._say.popleft())

    def _send(self, message: messages.ToServer) -> bool:
        """What cannot be sent now is said in a Hello later on."""
        with suppress(zmq.Again):
            self._socket.send(messages.encode(message), zmq.NOBLOCK)
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
                self._handle(messages.from_server([f.buffer for f in frames]), frames)
            except messages.MalformedMessage as e:
                self._fail(
                    ServerError(
                        f"{self.options.address} does not speak as a server of gpupipe does: {e}"
                    )
                )
            except Exception as e:  # the consumer gets it, and may begin again: this thread goes on
                self._fail(self._caused(f"a message of {self.options.address} cannot be taken", e))

    def _handle(self, message: messages.ToClient, frames: list[Any]) -> None:
        if isinstance(message, messages.Part | messages.Batch):
            if self._greeted and not self._closing:
                self._on_bytes(message, frames)
        elif isinstance(message, messages.Who):
            self._on_who()
        elif isinstance(message, messages.Welcome):
            self._on_welcome(message)
        else:
            with self._changed:
                self._on_news(message)
                self._changed.notify_all()

    def _on_bytes(self, message: messages.Part | messages.Batch, frames: list[Any]) -> None:
        if isinstance(message, messages.Part):
            whole = self._assembly.part(message, frames[1].buffer)
        else:
            try:
                whole = self._assembly.head(message)
            # where a living server's slot cannot be opened, batches come over the socket from now
            # on
            except messages.MalformedMessage:
                self._shared = not self._assembly.server_lives
                self._say_hello()
                return
        if whole is not None:
            self._arrived(*whole)

    def _on_news(self, message: messages.ToClient) -> None:
        if isinstance(message, messages.Gone):
            self._gone = True
        elif isinstance(message, messages.Confirm):
            self._holding.confirm(message.keys)
        elif isinstance(message, messages.Revoke):
            self._holding.revoke(message.keys)
        elif isinstance(message, messages.Begun):
            if message.number == self._number and self._place is not None:
                self._run, self._asked = message.run, False
        elif isinstance(message, messages.Ended):
            self._on_ended(message.run)
        elif isinstance(message, messages.Failed):
            self._error = error_of(message)
            self._final = self._error if message.final else None
            if message.final:
                self._post(messages.Stop())
        elif isinstance(message, messages.Refused):
            self._refusal = message.why
            if not message.again or time.monotonic() - self._began > self.options.patience:
                self._error = ServerError(f"{self.options.address}: {message.why}")

    def _on_ended(self, run: int) -> None:
        """The run is over: the next one begins, so that its batches are here when they are asked
        for.
        """
        if run == self._run and self._place is not None:
            self._begin(self._place[0] + 1, 0)
            self._ended = True

    def _on_who(self) -> None:
        """The server does not know us, or not this connection. One Hello at a time."""
        if time.monotonic() - self._said_hello > BEAT / 4:
            self._say_hello()

    def _on_welcome(self, message: messages.Welcome) -> None:
        if message.version != messages.VERSION:
            self._fail(
                ServerError(
                    f"{self.options.address} speaks version {message.version} of the "
                    f"protocol, and this is version {messages.VERSION}"
                )
            )
            return
        with self._changed:
            same = self.welcome is not None and self.welcome.history == message.history
            self.welcome, self._greeted = message, True
            if self._error is self._final:
                self._error = None
            self._final = None
            self._assembly.begin(message.pid)
            if same:
                self._holding.keep_only(message.yours)
            else:
                self._holding = Inbox()
            if self._place is not None:
                self._post(
                    messages.Begin(
                        self._number, *self._place, self._run if same else -1, self._asked
                    )
                )
            self._changed.notify_all()

    def _arrived(self, head: messages.Batch, memory: Tensor) -> None:
        if (
            head.key[0] != self._run or self._error is not None
        ):  # of an iteration that was ended, or lacks a batch that failed
            return
        try:
            batch = self._finish(views(memory, head.fields))
        except GpupipeError as e:
            self._fail(e)
            return
        except Exception as e:
            self._fail(
                self._caused(
                    f"what is left to the client failed on a batch of {self.options.address}", e
                )
            )
            return
        with self._changed:
            if head.key[0] == self._run:
                self._holding.arrive(
                    head.key, Arrived(head.key, head.epoch, head.end, head.last, batch)
                )
                self._changed.notify_all()

    @staticmethod
    def _caused(what: str, cause: Exception) -> ServerError:
        error = ServerError(f"{what}: {cause!r}")
        error.__cause__ = cause
        return error

    def _fail(self, error: GpupipeError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
