"""A client's connection to one server. Its thread receives batches, keeps them until the consumer
asks for them, and reconnects.

1. Only the thread uses the socket. The consumer's calls queue messages in `_outgoing` and wake the
   thread.
2. The condition `_changed` guards the state that both use. It is notified whenever that state
   changes for the consumer.
3. The thread finishes each batch: it runs the client's steps and copies the batch to its device.
   The consumer takes the finished batch.
4. If nothing is heard from the server for `patience` seconds, the consumer's call raises
   ServerError. The thread keeps trying to reach the server.
5. Between a Hello and its Welcome the client drops all batches that arrive: the server requeues
   those that the Hello did not name.
6. close() repeats Bye until the server answers, for at most two seconds, and ends the thread. The
   thread is a daemon: it also ends with the process.
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
_RETRY_SECONDS = 0.05
_BYE_SECONDS = 2.0
_MAX_RECEIVES = 64
_LOG_AFTER = 3.0
"""Seconds after which open() logs what it waits for."""
_log = logging.getLogger("gpupipe")
Finish = Callable[[dict[str, Tensor]], Any]


@dataclass(frozen=True)
class Arrived:
    """A batch that is ready for the consumer.

    Attributes:
        key: Identifies the batch.
        epoch: Its epoch.
        end: Number of samples of the epoch that all ranks have had after it.
        last: It is the last batch of the pass that this client gets.
        batch: What `finish` returned.

    """

    key: Key
    epoch: int
    end: int
    last: bool
    batch: Any


class Connection:
    """A connection to one server; the head of this file explains it. Call close() at the end.

    Args:
        options: How to connect.
        finish: Called in the connection's thread with the tensors of a batch, by field name. What
            it returns is the batch that the consumer gets.

    Attributes:
        options: How to connect.
        welcome: The server's last Welcome, or None before the first one.

    Raises:
        ServerError: The address or a key file is wrong.

    """

    def __init__(self, options: ConnectionOptions, finish: Finish) -> None:
        self.options, self._finish = options, finish
        self.welcome: messages.Welcome | None = None
        self._token = token_hex(16)
        self._hello, self._is_welcomed, self._is_bye_answered = (
            greeting(options, self._token),
            False,
            False,
        )
        self._changed = threading.Condition()
        self._inbox: Inbox[Arrived] = Inbox()
        self._outgoing: deque[messages.ToServer] = deque()
        self._error: GpupipeError | None = None
        self._broken: GpupipeError | None = None
        """Why the thread ended, if close() did not end it."""
        self._final: GpupipeError | None = None
        """The error that ended the server: all iterations raise it until the next Welcome."""
        self._refusal = ""
        self._number, self._run, self._ended, self._shared = (
            0,
            -1,
            False,
            options.transport != "tcp",
        )
        self._position: tuple[int, int] | None = None
        self._is_asked = False
        self._reassembly = Assembly(options.hwm + 2, options.gpu)
        self._created = self._heard = time.monotonic()
        self._last_hello = 0.0
        self._closing = False
        self._context = zmq.Context(io_threads=2)
        self._socket = dial(self._context, options)
        self._waker = Waker()
        self._thread = threading.Thread(
            target=self._run_thread, name=f"gpupipe {options.address}", daemon=True
        )
        self._thread.start()

    # --- for the consumer's thread

    def open(self) -> messages.Welcome:
        """Wait for the server's Welcome and return it. Log after three seconds what it waits for.

        Raises:
            ServerError: The server refuses this client or does not answer within `patience`
                seconds, or something else listens at the address.

        """
        since = time.monotonic()
        if self.options.patience > _LOG_AFTER and not self._is_answered(_LOG_AFTER):
            self._log_why_waiting()
        with self._changed:
            self._wait(lambda: self.welcome is not None, since)
        assert self.welcome is not None
        return self.welcome

    def _is_answered(self, seconds: float) -> bool:
        """Wait up to `seconds` for a Welcome, an error or close(). Return whether one came."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.welcome is not None or self._error is not None or self._closing,
                seconds,
            )

    def _log_why_waiting(self) -> None:
        """Log why no answer has come. Raises ServerError if no server of gpupipe listens there."""
        options = self.options
        why = self._refusal or peer.check(options.address, options.key is not None).text
        _log.warning(
            "gpupipe: waiting for the server at %s for up to %g s: %s",
            options.address,
            options.patience,
            why,
        )

    def begin(self, epoch: int, position: int, asked: bool = False) -> None:
        """Start an iteration.

        At the end of a pass the thread starts the next one itself. If that one is at this position,
        the iteration continues with it.

        Args:
            epoch: Epoch to read.
            position: Number of samples of the epoch to leave out.
            asked: The user named this position, so the server must not choose another one.

        """
        with self._changed:
            if not (self._ended and self._position == (epoch, position)):
                self._begin(epoch, position, asked)
            self._ended = False

    def _begin(self, epoch: int, position: int, asked: bool = False) -> None:
        self._number += 1
        self._is_asked = asked
        self._position, self._run, self._error = (epoch, position), -1, self._final
        self._inbox.drop()
        self._post(messages.Begin(self._number, epoch, position, -1, asked))

    @property
    def epoch(self) -> int:
        """The epoch that is read; after the end of a pass, the next epoch."""
        with self._changed:
            return self._position[0] if self._position is not None else 0

    def next(self) -> Arrived | None:
        """Wait for the next batch and return it; None if the pass is over.

        Raises:
            ServerError: The server is silent for `patience` seconds, or refuses this client.
            GpupipeError: The server's pipeline raised it.

        """
        with self._changed:
            received: list[tuple[Key, Arrived]] = []

            def ready() -> bool:
                taken = None if self._ended else self._inbox.take()
                received.extend([taken] if taken else [])
                return bool(received) or self._ended

            self._wait(ready)
            if not received:
                return None
            arrived = received[0][1]
            self._position = arrived.epoch, arrived.end
            return arrived

    def consumed(self, key: Key) -> None:
        """Acknowledge a batch that the consumer is done with. Idempotent."""
        with self._changed:
            if self._inbox.consume(key):
                self._post(messages.Done([key], self._reassembly.freed()))

    def stop(self) -> None:
        """End the iteration: the server requeues all batches that were not consumed. Idempotent."""
        with self._changed:
            if self._position is not None:
                self._position, self._run, self._ended = None, -1, False
                self._inbox.drop()
                self._post(messages.Stop())

    def close(self) -> None:
        """End the session and the thread. Idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._inbox.drop()
            self._changed.notify_all()
        self._waker.wake()
        self._thread.join()
        self._waker.close()

    def _wait(self, ready: Callable[[], bool], since: float | None = None) -> None:
        """Wait until `ready` returns True. The caller holds the lock.

        Args:
            ready: Called under the lock, repeatedly.
            since: When the waiting began, as time.monotonic() returns it; by default now.

        Raises:
            ServerError: The server is silent for `patience` seconds, or the connection is closed.
            GpupipeError: The error that a message or the thread brought.

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
        self._outgoing.append(message)
        self._waker.wake()

    # --- the thread

    def _run_thread(self) -> None:
        try:
            self._serve()
            self._say_bye()
        except Exception as e:
            self._broken = self._wrap_error(f"the connection to {self.options.address} failed", e)
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
                beat = time.monotonic() + (BEAT if self._send_heartbeat() else _RETRY_SECONDS)
            ready = dict(poller.poll(max(0, int(1000 * (beat - time.monotonic())))))
            if self._waker.descriptor in ready:
                self._waker.clear()
            self._send_all()
            if self._socket in ready:
                self._receive_some()

    def _say_bye(self) -> None:
        """Repeat Bye until the server answers, for at most _BYE_SECONDS, over reconnects too."""
        until, again = time.monotonic() + _BYE_SECONDS, 0.0
        bye = messages.Bye(self._token, list(self._inbox.unconfirmed))
        while self.welcome is not None and not self._is_bye_answered and time.monotonic() < until:
            if time.monotonic() >= again:
                again = time.monotonic() + (BEAT / 4 if self._send(bye) else _RETRY_SECONDS)
            if self._socket.poll(int(1000 * _RETRY_SECONDS)):
                self._receive_some()

    def _send_heartbeat(self) -> bool:
        """Send a heartbeat. False if no server is connected."""
        if self.welcome is None:
            return self._say_hello()
        freed = self._reassembly.freed()
        return self._send(messages.Done([], freed) if freed else messages.Ping())

    def _say_hello(self) -> bool:
        with self._changed:
            holding, done = self._inbox.keys, list(self._inbox.unconfirmed)
            history = self.welcome.history if self.welcome is not None else ""
        self._last_hello, self._is_welcomed = time.monotonic(), False
        self._reassembly.drop()
        return self._send(self._hello(self._shared, holding, done, history))

    def _send_all(self) -> None:
        while self._outgoing:
            self._send(self._outgoing.popleft())

    def _send(self, message: messages.ToServer) -> bool:
        """Send a message, or return False. The next Hello makes up for what could not be sent."""
        with suppress(zmq.Again):
            self._socket.send(messages.encode(message), zmq.NOBLOCK)
            return True
        return False

    def _receive_some(self) -> None:
        for _ in range(_MAX_RECEIVES):
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
            except Exception as e:  # the consumer gets the error, and may start another iteration
                self._fail(
                    self._wrap_error(f"a message of {self.options.address} cannot be taken", e)
                )

    def _handle(self, message: messages.ToClient, frames: list[Any]) -> None:
        if isinstance(message, messages.Part | messages.Batch):
            if self._is_welcomed and not self._closing:
                self._on_bytes(message, frames)
        elif isinstance(message, messages.Who):
            self._on_who()
        elif isinstance(message, messages.Welcome):
            self._on_welcome(message)
        else:
            with self._changed:
                self._on_control_message(message)
                self._changed.notify_all()

    def _on_bytes(self, message: messages.Part | messages.Batch, frames: list[Any]) -> None:
        if isinstance(message, messages.Part):
            whole = self._reassembly.part(message, frames[1].buffer)
        else:
            try:
                whole = self._reassembly.head(message)
            # The slot of a live server cannot be opened: ask for batches over the socket instead.
            except messages.MalformedMessage:
                self._shared = not self._reassembly.server_lives
                self._say_hello()
                return
        if whole is not None:
            self._on_whole_batch(*whole)

    def _on_control_message(self, message: messages.ToClient) -> None:
        if isinstance(message, messages.Gone):
            self._is_bye_answered = True
        elif isinstance(message, messages.Confirm):
            self._inbox.confirm(message.keys)
        elif isinstance(message, messages.Revoke):
            self._inbox.revoke(message.keys)
        elif isinstance(message, messages.Begun):
            if message.number == self._number and self._position is not None:
                self._run, self._is_asked = message.run, False
        elif isinstance(message, messages.Ended):
            self._on_ended(message.run)
        elif isinstance(message, messages.Failed):
            self._error = error_of(message)
            self._final = self._error if message.final else None
            if message.final:
                self._post(messages.Stop())
        elif isinstance(message, messages.Refused):
            self._refusal = message.why
            if not message.again or time.monotonic() - self._created > self.options.patience:
                self._error = ServerError(f"{self.options.address}: {message.why}")

    def _on_ended(self, run: int) -> None:
        """Start the next pass at once, so that its batches arrive before they are needed."""
        if run == self._run and self._position is not None:
            self._begin(self._position[0] + 1, 0)
            self._ended = True

    def _on_who(self) -> None:
        """Say Hello to a server that has no session for this connection, but not too often."""
        if time.monotonic() - self._last_hello > BEAT / 4:
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
            is_same_history = self.welcome is not None and self.welcome.history == message.history
            self.welcome, self._is_welcomed = message, True
            if self._error is self._final:
                self._error = None
            self._final = None
            self._reassembly.begin(message.pid)
            if is_same_history:
                self._inbox.keep_only(message.yours)
            else:
                self._inbox = Inbox()
            if self._position is not None:
                self._post(
                    messages.Begin(
                        self._number,
                        *self._position,
                        self._run if is_same_history else -1,
                        self._is_asked,
                    )
                )
            self._changed.notify_all()

    def _on_whole_batch(self, head: messages.Batch, memory: Tensor) -> None:
        # The batch belongs to an iteration that has ended, or in which an earlier batch failed.
        if head.key[0] != self._run or self._error is not None:
            return
        try:
            batch = self._finish(views(memory, head.fields))
        except GpupipeError as e:
            self._fail(e)
            return
        except Exception as e:
            self._fail(
                self._wrap_error(
                    f"what is left to the client failed on a batch of {self.options.address}", e
                )
            )
            return
        with self._changed:
            if head.key[0] == self._run:
                self._inbox.arrive(
                    head.key, Arrived(head.key, head.epoch, head.end, head.last, batch)
                )
                self._changed.notify_all()

    @staticmethod
    def _wrap_error(context: str, cause: Exception) -> ServerError:
        error = ServerError(f"{context}: {cause!r}")
        error.__cause__ = cause
        return error

    def _fail(self, error: GpupipeError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
