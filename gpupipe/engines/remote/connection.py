"""A client's connection to one server. Its thread receives batches, keeps them until the consumer
asks for them, and reconnects.

1. Only the thread uses the socket. The consumer's calls queue messages in the session (session.py)
   and wake the thread.
2. The condition `_changed` guards the session. The thread notifies it after each message, finished
   batch and error, since the consumer may wait for any of these.
3. The thread joins the pieces of each batch (reading.py) and finishes it: it runs the client's
   steps, and copies the batch to the client's device. The consumer takes the finished batch.
4. If no message of the server arrives for `patience` seconds, the consumer's call raises
   ServerError. The thread keeps trying to reach the server.
5. close() repeats CloseSession until the server answers, for at most two seconds, and ends the
   thread. The thread also ends if the server serves something else after a restart: next() then
   raises ServerError. The thread is a daemon: it also ends with the process.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gpupipe.engines.remote.reading import Reassembly, ReceivedBatch, Whole
from gpupipe.engines.remote.server_socket import ServerSocket
from gpupipe.engines.remote.session import ConnectionOptions, Finish, Session, wrap_error
from gpupipe.errors import GpupipeError, ServerError
from gpupipe.protocol import batch_bytes, codec, messages, sockets
from gpupipe.protocol.batch_bytes import MalformedMessage
from gpupipe.protocol.messages import Key

HEARTBEAT_SECONDS = 1.0
_RETRY_SECONDS = 0.05
_CLOSE_SECONDS = 2.0
_LOG_AFTER = 3.0
"""Seconds without a session after which open() logs a warning."""
_log = logging.getLogger("gpupipe")


class Connection:
    """A connection to one server. Its thread receives batches, and reconnects.

    The caller must call close() at the end.

    Attributes:
        options: The server's address, and how to connect to it.

    Raises:
        ServerError: The address or a key file is wrong.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._changed = threading.Condition()
        self._session = Session(options)
        self._reassembly = Reassembly(options.hwm + 2, options.gpu)
        self._wants_shared_memory = options.transport != "tcp"
        self._created = self._last_heard = time.monotonic()
        self._last_request = 0.0
        self._closing = False
        self._socket = ServerSocket(options)
        self._thread = threading.Thread(
            target=self._run_thread, name=f"gpupipe {options.address}", daemon=True
        )
        self._thread.start()

    # --- for the consumer's thread

    def open(self) -> messages.SessionOpened:
        """Wait until the server has opened the session, and return its answer.

        If this takes more than three seconds, a warning is logged that says why.

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
        """Start an iteration at a position, with the arguments of Session.start_iteration.

        The connection's thread calls `finish`.
        """
        with self._changed:
            self._session.start_iteration(epoch, position, finish, is_explicit)
        self._socket.wake()

    @property
    def epoch(self) -> int:
        """The epoch that the consumer reads; after its last batch the next epoch; 0 if stopped."""
        with self._changed:
            return self._session.iteration.epoch

    def next(self) -> ReceivedBatch | None:
        """Wait for the next batch and return it; return None if the epoch is over.

        Raises:
            ServerError: The server is silent for `patience` seconds, or refuses this client.
            GpupipeError: The server's pipeline, or a step of this client, failed.
        """
        session = self._session
        with self._changed:
            self._wait(lambda: session.inbox.can_take or session.iteration.is_at_end)
            return session.take()

    def acknowledge(self, key: Key) -> None:
        """Tell the server that the consumer has consumed a batch. Idempotent."""
        with self._changed:
            if self._session.inbox.consume(key):
                freed = self._reassembly.take_freed_slots()
                self._session.outgoing.append(messages.Acknowledge([key], freed))
        self._socket.wake()

    def end_iteration(self) -> None:
        """End the iteration: the server puts unconsumed batches back into its queue. Idempotent."""
        with self._changed:
            self._session.end_iteration()
        self._socket.wake()

    def close(self) -> None:
        """End the session and the thread. Idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._session.inbox.drop()
            self._changed.notify_all()
        self._socket.wake()
        self._thread.join()
        self._socket.close_waker()

    def _wait(self, is_ready: Callable[[], bool], since: float | None = None) -> None:
        """Wait until `is_ready` returns True. The caller must hold the lock of `_changed`.

        `since` is the start of the wait, in seconds of the monotonic clock; None means now. Raises
        the session's error, or ServerError if the server is silent or the connection is closed.
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
            self._socket.close()

    def _loop(self) -> None:
        beat = 0.0
        while not self._closing and self._session.thread_error is None:
            if time.monotonic() >= beat:
                pause = HEARTBEAT_SECONDS if self._send_heartbeat() else _RETRY_SECONDS
                beat = time.monotonic() + pause
            has_messages = self._socket.wait(beat - time.monotonic())
            self._send_all()
            if has_messages:
                self._receive_some()
                self._send_all()

    def _close_session(self) -> None:
        """Repeat CloseSession until the server answers, for at most two seconds."""
        session = self._session
        message = messages.CloseSession(session.token, list(session.inbox.unconfirmed))
        until, again = time.monotonic() + _CLOSE_SECONDS, 0.0
        while session.opened is not None and not session.is_closed and time.monotonic() < until:
            if time.monotonic() >= again:
                pause = HEARTBEAT_SECONDS / 4 if self._socket.send(message) else _RETRY_SECONDS
                again = time.monotonic() + pause
            if self._socket.wait_for_message(_RETRY_SECONDS):
                self._receive_some()

    def _send_heartbeat(self) -> bool:
        """Send a heartbeat, or OpenSession before the first session. Return whether it was sent."""
        if self._session.opened is None:
            return self._open_session()
        freed = self._reassembly.take_freed_slots()
        return self._socket.send(messages.Acknowledge([], freed) if freed else messages.Ping())

    def _open_session(self, min_pause: float = 0.0) -> bool:
        """Send an OpenSession message, unless one was sent less than `min_pause` seconds ago.

        Return whether the message was sent.
        """
        if time.monotonic() - self._last_request < min_pause:
            return False
        with self._changed:
            request = self._session.request(self._wants_shared_memory)
        self._last_request = time.monotonic()
        self._reassembly.drop_incomplete()
        return self._socket.send(request)

    def _send_all(self) -> None:
        while self._session.outgoing:
            self._socket.send(self._session.outgoing.popleft())

    def _receive_some(self) -> None:
        for frames in self._socket.receive():
            self._last_heard = time.monotonic()
            self._handle(frames)

    def _handle(self, frames: list[Any]) -> None:
        """Handle the frames of a message, as recv_multipart(copy=False) returns them."""
        address = self.options.address
        context = f"a message of {address} cannot be taken"
        try:
            message = codec.decode_from_server([frame.buffer for frame in frames])
            match message:
                case messages.UnknownSession():
                    if not self._closing:  # else nobody would close the new session
                        self._open_session(HEARTBEAT_SECONDS / 4)
                case messages.BatchHeader() | messages.BatchPart():
                    if (whole := self._join(message, frames)) is not None:
                        context = f"what is left to the client failed on a batch of {address}"
                        self._finish_batch(*whole)
                case _:
                    is_impatient = time.monotonic() - self._created > self.options.patience
                    with self._changed:
                        if isinstance(message, messages.SessionOpened):
                            self._reassembly.connect(message.pid)
                        self._session.handle(message, is_impatient)
                        self._changed.notify_all()
        except MalformedMessage as e:
            rule = f"{address} does not speak as a server of gpupipe does"
            self._fail(ServerError(f"{rule}, so another program may listen there: {e}"))
        except Exception as e:  # the consumer gets the error, and may start another iteration
            self._fail(wrap_error(context, e))

    def _join(
        self, message: messages.BatchHeader | messages.BatchPart, frames: list[Any]
    ) -> Whole | None:
        """Add a header or a piece to the batch that is arriving; return the batch once complete."""
        if self._closing or not self._session.is_open:
            return None
        if isinstance(message, messages.BatchPart):
            return self._reassembly.add_part(message, frames[1].buffer)
        try:
            return self._reassembly.start(message)
        # If the server is alive and its slot cannot be opened, ask for batches over the socket.
        except MalformedMessage:
            self._wants_shared_memory = not self._reassembly.is_server_alive
            self._open_session()
            return None

    def _finish_batch(self, head: messages.BatchHeader, memory: Tensor) -> None:
        session = self._session
        # Ignore a batch of an iteration that has ended, or in which an earlier batch failed.
        if head.key[0] != session.iteration.pass_number or session.error is not None:
            return
        assert session.finish is not None
        batch = session.finish(batch_bytes.views(memory, head.fields), head.epoch)
        with self._changed:
            if head.key[0] == session.iteration.pass_number:
                session.inbox.add(ReceivedBatch(head, batch))
                self._changed.notify_all()

    def _fail(self, error: GpupipeError) -> None:
        with self._changed:
            self._session.iteration_error = error
            self._changed.notify_all()
