"""A client's connection to one server. Its thread receives batches, keeps them until the consumer
asks for them, and reconnects.

1. Only the thread uses the socket. The consumer's calls queue messages in the session (session.py)
   and wake the thread.
2. The condition `_changed` guards the session. The thread notifies it after each message, finished
   batch and error, since the consumer may wait for one.
3. The thread handles arriving messages (receiver.py) and finishes each batch: it runs the client's
   steps and copies the batch to its device. The consumer takes the finished batch.
4. If no message of the server arrives for `patience` seconds, the consumer's call raises
   ServerError. The thread keeps trying to reach the server.
5. close() repeats CloseSession until the server answers, for at most two seconds, and ends the
   thread. The thread also ends if the server serves something else after a restart: next() then
   raises ServerError. The thread is a daemon: it also ends with the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from gpupipe.client.iteration import ReceivedBatch
from gpupipe.client.receiver import Receiver, wrap_error
from gpupipe.client.session import ConnectionOptions, Finish, Session
from gpupipe.errors import ServerError
from gpupipe.protocol import codec, messages, sockets
from gpupipe.protocol.messages import Key

HEARTBEAT_SECONDS = 1.0
_RETRY_SECONDS = 0.05
_CLOSE_SECONDS = 2.0
_MAX_RECEIVES = 64
_LOG_AFTER = 3.0
"""Seconds without a session after which open() logs a warning."""
_LINGER_MS = 500
_SOCKET_BUFFER = 4 << 20
_log = logging.getLogger("gpupipe")


class Connection:
    """A connection to one server; the head of this file explains it. Call close() at the end.

    Attributes:
        options: How to connect.

    Raises:
        ServerError: The address or a key file is wrong.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._changed = threading.Condition()
        self._session = Session(options)
        self._receiver = Receiver(self._session, self._changed, self._reopen_session)
        self._last_heard = time.monotonic()
        self._last_request = 0.0
        self._closing = False
        self._context = zmq.Context(io_threads=2)
        self._socket = dial(self._context, options)
        self._waker = sockets.Waker()
        self._thread = threading.Thread(
            target=self._run_thread, name=f"gpupipe {options.address}", daemon=True
        )
        self._thread.start()

    # --- for the consumer's thread

    def open(self) -> messages.SessionOpened:
        """Wait until the server has opened the session, and return its answer.

        After three seconds it logs a warning that says why it still waits.

        Raises:
            ServerError: The server refuses this client or does not answer within `patience`
                seconds, or something else listens at the address.
        """
        since, session, options = time.monotonic(), self._session, self.options
        with self._changed:
            is_settled = self._changed.wait_for(
                lambda: session.opened or session.error or self._closing,
                min(_LOG_AFTER, options.patience),
            )
        if not is_settled and options.patience > _LOG_AFTER:
            _log.warning(
                "gpupipe: waiting for the server at %s for up to %g s: %s",
                options.address,
                options.patience,
                session.refusal
                or sockets.describe_listener(options.address, options.key is not None),
            )
        with self._changed:
            self._wait(lambda: session.opened is not None, since)
        assert session.opened is not None
        return session.opened

    def start_iteration(
        self, epoch: int, position: int, finish: Finish, is_explicit: bool = False
    ) -> None:
        """Start an iteration.

        Args:
            epoch: Epoch to read.
            position: Number of samples to skip at the start of the epoch.
            finish: Called in the connection's thread with the tensors of each batch, by field
                name, and its epoch. Its return value is the batch that the consumer gets.
            is_explicit: The user named this position, so the server must not choose another one.
        """
        with self._changed:
            self._session.start_iteration(epoch, position, finish, is_explicit)
        self._waker.wake()

    @property
    def epoch(self) -> int:
        """Epoch that the iteration reads; after a pass has ended, the next epoch; 0 if stopped."""
        with self._changed:
            position = self._session.iteration.position
            return position[0] if position is not None else 0

    def next(self) -> ReceivedBatch | None:
        """Wait for the next batch and return it; None if the pass is over.

        Raises:
            ServerError: The server is silent for `patience` seconds, or refuses this client.
            GpupipeError: The server's pipeline, or a step of this client, failed with this error.
        """
        session = self._session
        with self._changed:
            self._wait(lambda: session.inbox.can_take or session.iteration.is_at_end)
            return session.take()

    def acknowledge(self, key: Key) -> None:
        """Acknowledge a batch that the consumer has consumed. Idempotent."""
        with self._changed:
            if self._session.inbox.consume(key):
                freed = self._receiver.reassembly.take_freed_slots()
                self._session.outgoing.append(messages.Acknowledge([key], freed))
        self._waker.wake()

    def end_iteration(self) -> None:
        """End the iteration: the server requeues all unconsumed batches. Idempotent."""
        with self._changed:
            self._session.end_iteration()
        self._waker.wake()

    def close(self) -> None:
        """End the session and the thread. Idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._session.inbox.drop()
            self._changed.notify_all()
        self._waker.wake()
        self._thread.join()
        self._waker.close()

    def _wait(self, is_ready: Callable[[], bool], since: float | None = None) -> None:
        """Wait until `is_ready` returns True. The caller holds the lock.

        Args:
            is_ready: Called under the lock, repeatedly.
            since: Start of the wait, in seconds of the monotonic clock; by default now.

        Raises:
            ServerError: The server is silent for `patience` seconds, or the connection is closed.
            GpupipeError: The server sent this error, or it occurred in the connection's thread.
        """
        since = time.monotonic() if since is None else since
        while not is_ready():
            if self._session.error is not None:
                raise self._session.error
            if self._closing:
                raise ServerError(f"the connection to {self.options.address} was closed")
            silence = time.monotonic() - max(since, self._last_heard)
            if silence > self.options.patience:
                raise ServerError(
                    f"{self.options.address} was silent for {silence:.0f} s: is a server "
                    f"running there ('gpupipe status {self.options.address}'), "
                    "can it be reached, and are the keys right?"
                )
            self._changed.wait(min(HEARTBEAT_SECONDS, self.options.patience))

    # --- the thread

    def _run_thread(self) -> None:
        try:
            self._loop()
            self._close_session()
        except Exception as e:
            error = wrap_error(f"the connection to {self.options.address} failed", e)
            with self._changed:
                self._session.thread_error = error
                self._changed.notify_all()
        finally:
            self._socket.close(_LINGER_MS)
            self._context.term()

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.descriptor, zmq.POLLIN)
        beat = 0.0
        while not self._closing and self._session.thread_error is None:
            if time.monotonic() >= beat:
                pause = HEARTBEAT_SECONDS if self._send_heartbeat() else _RETRY_SECONDS
                beat = time.monotonic() + pause
            ready = dict(poller.poll(max(0, int(1000 * (beat - time.monotonic())))))
            if self._waker.descriptor in ready:
                self._waker.clear()
            self._send_all()
            if self._socket in ready:
                self._receive_some()
                self._send_all()

    def _close_session(self) -> None:
        """Repeat CloseSession until the server answers, for at most two seconds."""
        session = self._session
        message = messages.CloseSession(session.token, list(session.inbox.unconfirmed))
        until, again = time.monotonic() + _CLOSE_SECONDS, 0.0
        while session.opened is not None and not session.is_closed and time.monotonic() < until:
            if time.monotonic() >= again:
                pause = HEARTBEAT_SECONDS / 4 if self._send(message) else _RETRY_SECONDS
                again = time.monotonic() + pause
            if self._socket.poll(int(1000 * _RETRY_SECONDS)):
                self._receive_some()

    def _send_heartbeat(self) -> bool:
        """Send a heartbeat, or OpenSession before the first session. False if it cannot be sent."""
        if self._session.opened is None:
            return self._open_session()
        freed = self._receiver.reassembly.take_freed_slots()
        return self._send(messages.Acknowledge([], freed) if freed else messages.Ping())

    def _open_session(self) -> bool:
        with self._changed:
            request = self._session.request(self._receiver.wants_shared_memory)
        self._last_request = time.monotonic()
        self._receiver.reassembly.drop_incomplete()
        return self._send(request)

    def _send_all(self) -> None:
        while self._session.outgoing:
            self._send(self._session.outgoing.popleft())

    def _send(self, message: messages.ToServer) -> bool:
        """Send a message; False if it is lost. The next OpenSession makes up for a lost message."""
        with suppress(zmq.Again):
            self._socket.send(codec.encode(message), zmq.NOBLOCK)
            return True
        return False

    def _receive_some(self) -> None:
        for _ in range(_MAX_RECEIVES):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._last_heard = time.monotonic()
            self._receiver.receive(frames, is_closing=self._closing)

    def _reopen_session(self, is_urgent: bool) -> None:
        """Send OpenSession again; at most four times a second unless `is_urgent`."""
        if is_urgent or time.monotonic() - self._last_request > HEARTBEAT_SECONDS / 4:
            self._open_session()


def dial(context: Any, options: ConnectionOptions) -> Any:
    """Return a DEALER socket that connects and reconnects to a server. Raises ServerError."""
    socket = context.socket(zmq.DEALER)
    for option, value in (
        (zmq.LINGER, _LINGER_MS),
        (zmq.RCVHWM, 0),
        (zmq.SNDHWM, 1000),
        (zmq.IMMEDIATE, 1),
        (zmq.MAXMSGSIZE, codec.MESSAGE_LIMIT),
        (zmq.RCVBUF, _SOCKET_BUFFER),
        (zmq.RECONNECT_IVL, 100),
        (zmq.RECONNECT_IVL_MAX, 2000),
        (zmq.HEARTBEAT_IVL, 2000),
        (zmq.HEARTBEAT_TIMEOUT, 10000),
        (zmq.IPV6, int("[" in options.address)),
    ):
        socket.setsockopt(option, value)
    try:
        sockets.connect(socket, options.address, options.key, options.server_key)
    except BaseException:
        socket.close(0)
        context.term()
        raise
    return socket
