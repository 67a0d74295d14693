"""What a client knows of its session: without sockets, threads or clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gpupipe import errors
from gpupipe.client.iteration import Inbox, Iteration
from gpupipe.errors import GpupipeError, SampleError, ServerError, short
from gpupipe.protocol import messages
from gpupipe.protocol.messages import Key

_COMPARED = {
    "data": ("data", "fingerprint"),
    "pipeline": ("pipeline", "fingerprint"),
    "steps left to clients": ("pipeline", "tail"),
    "batch": ("batch", "fingerprint"),
    "mode": ("mode",),
}
"""Values of the description by their names in messages, besides those of `loader`."""

Finish = Callable[[dict[str, Tensor], int], Any]
"""Finishes a batch: its tensors, and its epoch."""


@dataclass(frozen=True)
class ReceivedBatch:
    """A batch that is ready for the consumer.

    Attributes:
        key: Identifies the batch.
        epoch: Its epoch.
        end: Number of samples of the epoch that all ranks have had after it.
        is_last: It is the last batch of the pass that this client gets.
        batch: What `finish` returned.
    """

    key: Key
    epoch: int
    end: int
    is_last: bool
    batch: Any


class Errors:
    """Errors that the consumer has to get.

    Attributes:
        of_iteration: Ended the current iteration; the next one may succeed.
        of_server: Ended the server: all iterations raise it until a server answers again.
        of_thread: Ended the connection's thread; nothing can succeed any more.
    """

    def __init__(self) -> None:
        self.of_iteration: GpupipeError | None = None
        self.of_server: GpupipeError | None = None
        self.of_thread: GpupipeError | None = None

    def current(self) -> GpupipeError | None:
        """Return the error that the consumer gets now, or None."""
        return self.of_iteration or self.of_thread

    def start_iteration(self) -> None:
        """Forget the error of the last iteration."""
        self.of_iteration = self.of_server

    def end_server(self, error: GpupipeError) -> None:
        """Record the error that ended the server."""
        self.of_iteration = self.of_server = error

    def open_session(self) -> None:
        """Forget the error that ended an earlier server."""
        if self.of_iteration is self.of_server:
            self.of_iteration = None
        self.of_server = None

    def end_thread(self, error: GpupipeError) -> None:
        """Record the error that ended the thread."""
        self.of_iteration = self.of_thread = error


class Session:
    """The client's half of a session. Its connection holds the lock while it calls this.

    Attributes:
        opened: The server's last answer to OpenSession, or None before the first one.
        is_open: The server has answered the last OpenSession. Before that, all batches that arrive
            are dropped: the server requeues those that the OpenSession did not name.
        is_closed: The server has answered CloseSession.
        inbox: The batches that this client holds.
        iteration: What the consumer reads.
        finish: Finishes the batches of the iteration; None before the first one.
        errors: What the consumer has to get.
        refusal: Why the server refused the last request, or "".
        outgoing: Messages to send, in order.
    """

    def __init__(self) -> None:
        self.opened: messages.SessionOpened | None = None
        self.is_open = self.is_closed = False
        self.inbox: Inbox[ReceivedBatch] = Inbox()
        self.iteration = Iteration()
        self.finish: Finish | None = None
        self.errors = Errors()
        self.refusal = ""
        self.outgoing: deque[messages.ToServer] = deque()

    # --- for the consumer

    def start_iteration(self, epoch: int, position: int, finish: Finish, is_explicit: bool) -> None:
        """Start an iteration, or continue with the pass that started after the last one."""
        self.finish = finish
        if not self.iteration.continue_at(epoch, position):
            self._start(self.iteration.start(epoch, position, is_explicit))

    def _start(self, message: messages.StartIteration) -> None:
        self.errors.start_iteration()
        self.inbox.drop()
        self.outgoing.append(message)

    def take(self) -> ReceivedBatch | None:
        """Take the next batch; None if none waits, or at the end of a pass."""
        taken = None if self.iteration.is_at_end else self.inbox.take()
        if taken is None:
            return None
        self.iteration.position = taken[1].epoch, taken[1].end
        return taken[1]

    def end_iteration(self) -> None:
        """End the iteration: the server requeues what was not consumed. Idempotent."""
        if self.iteration.stop():
            self.inbox.drop()
            self.outgoing.append(messages.EndIteration())

    # --- for the server's messages

    def reopen(self, message: messages.SessionOpened, address: str) -> None:
        """Reconcile this side with a server that has opened the session, or opened it again.

        A server that serves something else ends the connection.
        """
        if self.opened is not None and (differences := find_differences(self.opened, message)):
            self.inbox = Inbox()
            self.errors.end_thread(_serves_something_else(address, differences))
            return
        is_same_history = self.opened is not None and self.opened.history == message.history
        self.opened, self.is_open = message, True
        self.errors.open_session()
        if is_same_history:
            self.inbox.keep_only(message.leased)
        else:
            self.inbox = Inbox()
            if self.iteration.is_shared:
                self.errors.of_iteration = _has_no_record(address, self.iteration.position)
                self.iteration.stop()
        if (start := self.iteration.resume(is_same_history)) is not None:
            self.outgoing.append(start)

    def handle(self, message: messages.ToClient, address: str, is_impatient: bool) -> None:
        """Handle any other message but BatchHeader, BatchPart and UnknownSession.

        Args:
            message: The message.
            address: Address of the server, for error messages.
            is_impatient: Temporary refusals are errors by now.
        """
        if isinstance(message, messages.SessionClosed):
            self.is_closed = True
        elif isinstance(message, messages.Confirm):
            self.inbox.confirm(message.keys)
        elif isinstance(message, messages.Revoke):
            self.inbox.revoke(message.keys)
        elif isinstance(message, messages.IterationStarted):
            self.iteration.enter(message)
        elif isinstance(message, messages.PassEnded):
            if (start := self.iteration.end_pass(message.pass_number)) is not None:
                self._start(start)
        elif isinstance(message, messages.Failed):
            self._fail(message)
        elif isinstance(message, messages.Refused):
            self.refusal = message.reason
            if not message.is_temporary or is_impatient:
                self.errors.of_iteration = ServerError(f"{address}: {message.reason}")

    def _fail(self, message: messages.Failed) -> None:
        error = rebuild_error(message)
        if message.is_final:
            self.errors.end_server(error)
            self.outgoing.append(messages.EndIteration())
        else:
            self.errors.of_iteration, self.errors.of_server = error, None


def _serves_something_else(address: str, differences: str) -> ServerError:
    return ServerError(
        f"{address} was started again, and serves something else than before ({differences}): "
        "start it with the same config and options as before, or connect() again to begin with "
        "what it serves now"
    )


def _has_no_record(address: str, position: tuple[int, int] | None) -> ServerError:
    epoch = position[0] if position is not None else 0
    return ServerError(
        f"{address} was started again without a record of which client consumed which batch of "
        f"epoch {epoch}, and this client shared that epoch with others: go on with epoch "
        f"{epoch + 1}, which the next iteration begins; a server with --state keeps the record"
    )


def rebuild_error(failed: messages.Failed) -> GpupipeError:
    """Return the server's error as the exception that the same pipeline would raise here.

    Classes other than those of gpupipe.errors, and ConfigError, become ServerError.
    """
    if failed.kind == "SampleError":
        return SampleError(failed.path, failed.reason)
    kind = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, GpupipeError) and kind is not errors.ConfigError:
        return kind(failed.text)
    return ServerError(failed.text)


def find_differences(before: messages.SessionOpened, now: messages.SessionOpened) -> str:
    """Return how a server differs from the one that answered before, or "".

    It is what servers that are merged must have in common, and what the batches that are still to
    come depend on: rank, mode, dtype and the steps that are left to clients.
    """
    old, new = _identify(before), _identify(now)
    return "; ".join(
        f"{key}: {short(str(old.get(key)))} before, {short(str(new.get(key)))} now"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    )


def _identify(opened: messages.SessionOpened) -> dict[str, Any]:
    # a subset is a file of the server; the settings of the selection have its hash
    loader = {k: v for k, v in _get(opened, ("loader",), {}).items() if k != "subset"}
    return {
        **{key: _get(opened, path) for key, path in _COMPARED.items()},
        **loader,
        **_get(opened, ("selection", "settings"), {}),
        "rank": opened.rank,
        "world_size": opened.world_size,
    }


def _get(opened: messages.SessionOpened, path: tuple[str, ...], default: Any = None) -> Any:
    value: Any = opened.description
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return default if value is None else value
