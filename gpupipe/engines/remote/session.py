"""The client's half of a session: plain state, without sockets, threads or clocks."""

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from socket import gethostname
from typing import Any

from torch import Tensor

from gpupipe import errors
from gpupipe.engines.remote.reading import Inbox, Iteration, ReceivedBatch
from gpupipe.errors import EngineError, GpupipeError, SampleError, ServerError, short
from gpupipe.protocol import batch_bytes, messages, peers
from gpupipe.runtime.failures import machine_failure

Finish = Callable[[dict[str, Tensor], int], Any]
"""A function of a batch's tensors, by field name, and its epoch; returns the consumer's batch."""


@dataclass(frozen=True)
class ConnectionOptions:
    """How to connect to a server.

    Attributes:
        address: tcp://HOST:PORT or ipc://FILE.
        rank: Rank of this client, from 0.
        world_size: Number of ranks.
        hwm: Number of batches that this client may hold, 1 to 1000.
        transport: "auto" or "shm" for shared memory, if this machine and the server's allow it;
            "tcp" for the socket.
        key: File of this client's secret key, for a server with keys.
        server_key: File of the server's public key.
        patience: Seconds without a message from the server until a call raises ServerError.
        gpu: Index of the GPU that batches are copied to, or None. The memory that receives batches
            is page-locked for this GPU.
    """

    address: str
    rank: int = 0
    world_size: int = 1
    hwm: int = 10
    transport: str = "auto"
    key: Path | None = None
    server_key: Path | None = None
    patience: float = 60.0
    gpu: int | None = None


class Session:
    """The client's half of a session. The connection calls its methods under the connection's lock.

    Args:
        options: How the client connects.

    Attributes:
        options: How the client connects.
        token: Identifies the client over reconnects.
        opened: The server's last answer to OpenSession, or None before the first one.
        is_open: Whether the server has answered the last OpenSession. If not, arriving batches
            are dropped: the server puts those that OpenSession did not name back into its queue.
        is_closed: Whether the server has answered CloseSession.
        inbox: The batches that this client holds.
        iteration: The pass that the consumer reads, and its position.
        finish: Makes the consumer's batch from received tensors; None before the first iteration.
        iteration_error: The error that ended the current iteration; the next one may succeed.
        server_error: The error that ended the server. All iterations raise it until a server
            answers again.
        thread_error: The error that ended the connection's thread. All later iterations raise it.
        refusal: The reason of the server's last refusal, or "".
        outgoing: Messages to send, in order.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self.options, self.token = options, token_hex(16)
        self.opened: messages.SessionOpened | None = None
        self.is_open = self.is_closed = False
        self.inbox, self.iteration = Inbox(), Iteration()
        self.finish: Finish | None = None
        self.iteration_error: GpupipeError | None = None
        self.server_error: GpupipeError | None = None
        self.thread_error: GpupipeError | None = None
        self.refusal = ""
        self.outgoing: deque[messages.ToServer] = deque()
        self._num_requests = 0

    @property
    def error(self) -> GpupipeError | None:
        """The error that a consumer who waits for a batch gets, or None if there is none."""
        return self.thread_error or self.server_error or self.iteration_error

    # --- for the consumer

    def start_iteration(self, epoch: int, position: int, finish: Finish, is_explicit: bool) -> None:
        """Start an iteration at a position.

        When a pass ends, the session asks for the next pass at once. If that pass begins at this
        position, the iteration continues with it.

        Args:
            epoch: The epoch to read.
            position: Number of samples to skip at the start of the epoch.
            finish: Called with the tensors of each batch, by field name, and its epoch. Its return
                value is the batch that the consumer gets.
            is_explicit: The user named the position, so the server must not choose another one.
        """
        self.finish = finish
        if not self.iteration.continue_at(epoch, position):
            self._start(self.iteration.start(epoch, position, is_explicit))

    def _start(self, message: messages.StartIteration) -> None:
        self.iteration_error = None
        self.inbox.drop()
        self.outgoing.append(message)

    def take(self) -> ReceivedBatch | None:
        """Take the next batch; return None at the end of a pass, or if no batch can be taken."""
        taken = None if self.iteration.is_at_end else self.inbox.take()
        if taken is not None:
            self.iteration.position = taken.head.epoch, taken.head.end
        return taken

    def end_iteration(self) -> None:
        """End the iteration: the server puts unconsumed batches back into its queue. Idempotent."""
        if self.iteration.stop():
            self.inbox.drop()
            self.outgoing.append(messages.EndIteration())

    # --- for the server's messages

    def request(self, wants_shared_memory: bool) -> messages.OpenSession:
        """Return the OpenSession message that opens the session, or reopens it."""
        self.is_open = False
        self._num_requests += 1
        pid = os.getpid()
        return messages.OpenSession(
            version=messages.VERSION,
            token=self.token,
            number=self._num_requests,
            name=f"{gethostname()}:{pid}"[:200],
            rank=self.options.rank,
            world_size=self.options.world_size,
            hwm=self.options.hwm,
            host_id=peers.host_id(),
            pid=pid,
            process_started=peers.start_time(pid),
            wants_shared_memory=wants_shared_memory,
            codecs=list(batch_bytes.installed_codecs()),
            held=self.inbox.keys,
            consumed=list(self.inbox.unconfirmed),
            history=self.opened.history if self.opened is not None else "",
        )

    def reopen(self, message: messages.SessionOpened) -> None:
        """Reconcile inbox and iteration with the server's answer to OpenSession.

        Sets `thread_error` if the server serves something else than before.
        """
        if message.version != messages.VERSION:
            self.iteration_error = ServerError(
                f"{self.options.address} speaks version {message.version} of the protocol, and "
                f"this is version {messages.VERSION}"
            )
            return
        if self.opened is not None and (differences := find_differences(self.opened, message)):
            self.inbox = Inbox()
            self.thread_error = ServerError(
                f"{self.options.address} was started again, and serves something else than before "
                f"({differences}): start it with the same config and options as before, or "
                "connect() again to begin with what it serves now"
            )
            return
        is_same_history = self.opened is not None and self.opened.history == message.history
        self.opened, self.is_open, self.server_error = message, True, None
        if is_same_history:
            self.inbox.keep_only(message.leased)
        else:
            self.inbox = Inbox()
            if self.iteration.is_shared:
                epoch = self.iteration.epoch
                self.iteration_error = ServerError(
                    f"{self.options.address} was started again without a record of which client "
                    f"consumed which batch of epoch {epoch}, and this client shared that epoch "
                    f"with others: go on with epoch {epoch + 1}, which the next iteration begins; "
                    "a server with --state keeps the record"
                )
                self.iteration.stop()
        if (start := self.iteration.resume(is_same_history)) is not None:
            self.outgoing.append(start)

    def handle(self, message: messages.ToClient, is_impatient: bool) -> None:
        """Handle any message of the server except UnknownSession, BatchHeader and BatchPart.

        Args:
            message: The server's message.
            is_impatient: Whether a temporary refusal ends the iteration, as a permanent one does.
        """
        match message:
            case messages.SessionOpened():
                self.reopen(message)
            case messages.SessionClosed():
                self.is_closed = True
            case messages.Confirm():
                self.inbox.confirm(message.keys)
            case messages.Revoke():
                self.inbox.revoke(message.keys)
            case messages.IterationStarted():
                self.iteration.enter(message)
            case messages.PassEnded():
                if (start := self.iteration.end_pass(message.pass_number)) is not None:
                    self._start(start)
            case messages.Failed():
                error = rebuild_error(message)
                self.iteration_error = None if message.is_final else error
                self.server_error = error if message.is_final else None
                if message.is_final:
                    self.outgoing.append(messages.EndIteration())
            case messages.Refused():
                self.refusal = message.reason
                if not message.is_temporary or is_impatient:
                    self.iteration_error = ServerError(f"{self.options.address}: {message.reason}")


def wrap_error(context: str, cause: Exception) -> GpupipeError:
    """Return the GpupipeError that reports `cause`, and chain `cause` to it.

    Returns `cause` itself if it is a GpupipeError. Returns an EngineError if this machine failed,
    for instance its GPU, and otherwise a ServerError that begins with `context`.
    """
    if isinstance(cause, GpupipeError):
        return cause
    failure = machine_failure(cause)
    error = EngineError(failure) if failure else ServerError(f"{context}: {cause!r}")
    error.__cause__ = cause
    return error


def rebuild_error(failed: messages.Failed) -> GpupipeError:
    """Return the server's error as the exception that the same pipeline would raise here.

    A ConfigError, or a class that gpupipe.errors does not have, becomes a ServerError.
    """
    if failed.kind == "SampleError":
        return SampleError(failed.path, failed.reason)
    kind = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, GpupipeError) and kind is not errors.ConfigError:
        return kind(failed.text)
    return ServerError(failed.text)


def find_differences(before: messages.SessionOpened, now: messages.SessionOpened) -> str:
    """Return the differences between two answers to OpenSession as text, or "" if there are none.

    Compares all values that determine the batches: data, pipeline, steps left to clients, batch,
    mode, loader settings, selection and rank.
    """
    old, new = _identify(before), _identify(now)
    return "; ".join(
        f"{key}: {short(str(old.get(key)))} before, {short(str(new.get(key)))} now"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    )


def _identify(opened: messages.SessionOpened) -> dict[str, Any]:
    parts = ("data", "pipeline", "batch", "loader", "selection")
    data, pipeline, batch, loader, selection = (opened.description.get(n, {}) for n in parts)
    return {
        "data": data.get("fingerprint"),
        "pipeline": pipeline.get("fingerprint"),
        "steps left to clients": pipeline.get("tail"),
        "batch": batch.get("fingerprint"),
        "mode": opened.description.get("mode"),
        # `subset` may be a path on the server; the selection's settings hold a hash of its ids
        **{name: value for name, value in loader.items() if name != "subset"},
        **selection.get("settings", {}),
        "rank": opened.rank,
        "world_size": opened.world_size,
    }
