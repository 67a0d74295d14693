"""Handles the messages that arrive on a client's connection, in the connection's thread.

`Reassembly` gets the bytes of a batch from a slot of shared memory, or joins them from pieces.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gpupipe.client.iteration import ReceivedBatch
from gpupipe.client.session import Session
from gpupipe.errors import EngineError, GpupipeError, ServerError
from gpupipe.protocol import batch_bytes, codec, messages, processes
from gpupipe.protocol.batch_layout import MalformedMessage
from gpupipe.protocol.shared_memory import Buffers, Mapped
from gpupipe.runtime.failures import machine_failure


@dataclass
class _Incomplete:
    """A batch whose pieces have not all arrived.

    Attributes:
        head: The BatchHeader of the batch.
        memory: uint8 tensor that receives the bytes of the batch.
        missing: Number of bytes still to come, without padding.
        end: Byte offset in the batch where the last received piece ends.
    """

    head: messages.BatchHeader
    memory: Tensor
    missing: int
    end: int = 0


Whole = tuple[messages.BatchHeader, Tensor]
"""A complete batch: its head, and its bytes as a uint8 tensor."""


class Reassembly:
    """Reassembles the batches of one connection, one batch at a time.

    Args:
        num_kept: Number of free buffers to keep for reuse.
        gpu: Index of the GPU that the memory is page-locked for, or None.
    """

    def __init__(self, num_kept: int, gpu: int | None) -> None:
        self._gpu = gpu
        self._mapped, self._buffers = Mapped(0), Buffers(num_kept, gpu)
        self._incomplete: _Incomplete | None = None

    def connect(self, pid: int) -> None:
        """Drop the state of the old connection. `pid`: process id of the new server."""
        self._mapped = Mapped(pid, self._gpu)
        self._incomplete = None

    def drop_incomplete(self) -> None:
        """Drop the batch whose pieces have not all arrived."""
        self._incomplete = None

    def take_freed_slots(self) -> list[int]:
        """Return the numbers of up to 100 freed slots. Each number is returned once."""
        freed: list[int] = []
        while self._mapped.freed and len(freed) < 100:
            freed.append(self._mapped.freed.popleft())
        return freed

    @property
    def is_server_alive(self) -> bool:
        """Whether a process with the server's process id runs on this machine."""
        return bool(processes.start_time(self._mapped.pid))

    def start(self, head: messages.BatchHeader) -> Whole | None:
        """Begin a batch. Return it if it needs no pieces: it is in shared memory, or empty.

        Raises MalformedMessage if its slot cannot be opened.
        """
        if head.slot is not None:
            return head, self._mapped.tensor(head.slot, head.size)
        self._incomplete = _Incomplete(
            head, self._buffers.take(head.size), sum(field.nbytes for field in head.fields)
        )
        return self._whole(self._incomplete)

    def add_part(self, part: messages.BatchPart, data: Any) -> Whole | None:
        """Add a piece and return the batch if it is complete now. Raises MalformedMessage."""
        batch = self._incomplete
        # the header of this piece's batch was dropped, or went to an earlier connection
        if batch is None or part.key != batch.head.key:
            return None
        if part.offset < batch.end or part.offset + part.size > batch.head.size:
            raise MalformedMessage(
                f"a piece at byte {part.offset}, past byte {batch.end} of {batch.head.size}"
            )
        batch.memory.numpy().data[part.offset : part.offset + part.size] = batch_bytes.decompress(
            part.codec, data, part.size
        )
        batch.end, batch.missing = part.offset + part.size, batch.missing - part.size
        return self._whole(batch)

    def _whole(self, batch: _Incomplete) -> Whole | None:
        if batch.missing > 0:
            return None
        self._incomplete = None
        return batch.head, batch.memory


class Receiver:
    """Handles the server's messages: finishes batches, and passes other messages to the session.

    Args:
        session: The client's half of the session.
        changed: Condition whose lock guards the session.
        reopen: Sends OpenSession again. Called with False, it does nothing if an OpenSession was
            sent a moment ago.

    Attributes:
        reassembly: Joins the pieces of a batch.
        wants_shared_memory: Whether the client asks the server to use shared memory.
    """

    def __init__(
        self, session: Session, changed: threading.Condition, reopen: Callable[[bool], None]
    ) -> None:
        self._options, self._session, self._changed = session.options, session, changed
        self._reopen = reopen
        self._created = time.monotonic()
        self.reassembly = Reassembly(self._options.hwm + 2, self._options.gpu)
        self.wants_shared_memory = self._options.transport != "tcp"

    def receive(self, frames: list[Any], is_closing: bool) -> None:
        """Handle the frames of a message.

        Args:
            frames: The frames, as recv_multipart(copy=False) returns them.
            is_closing: Whether the connection is being closed. If so, batches are dropped.
        """
        address = self._options.address
        try:
            message = codec.decode_from_server([f.buffer for f in frames])
            match message:
                case messages.UnknownSession():
                    self._reopen(False)
                case messages.BatchPart() | messages.BatchHeader():
                    if self._session.is_open and not is_closing:
                        self._add(message, frames)
                case _:
                    with self._changed:
                        self._handle(message)
                        self._changed.notify_all()
        except MalformedMessage as e:
            self._fail(ServerError(f"{address} does not speak as a server of gpupipe does: {e}"))
        except Exception as e:  # the consumer gets the error, and may start another iteration
            self._fail(wrap_error(f"a message of {address} cannot be taken", e))

    def _handle(self, message: messages.ToClient) -> None:
        """Pass a message on to the session. The caller holds the lock."""
        if not isinstance(message, messages.SessionOpened):
            is_impatient = time.monotonic() - self._created > self._options.patience
            self._session.handle(message, is_impatient)
        elif message.version != messages.VERSION:
            self._session.iteration_error = ServerError(
                f"{self._options.address} speaks version {message.version} of the protocol, and "
                f"this is version {messages.VERSION}"
            )
        else:
            self.reassembly.connect(message.pid)
            self._session.reopen(message)

    def _add(self, message: messages.BatchPart | messages.BatchHeader, frames: list[Any]) -> None:
        if isinstance(message, messages.BatchPart):
            whole = self.reassembly.add_part(message, frames[1].buffer)
        else:
            try:
                whole = self.reassembly.start(message)
            # The slot of a live server cannot be opened: ask for batches over the socket instead.
            except MalformedMessage:
                self.wants_shared_memory = not self.reassembly.is_server_alive
                self._reopen(True)
                return
        if whole is not None:
            self._finish_batch(*whole)

    def _finish_batch(self, head: messages.BatchHeader, memory: Tensor) -> None:
        session = self._session
        # The batch belongs to an iteration that has ended, or in which an earlier batch failed.
        if head.key[0] != session.iteration.pass_number or session.error is not None:
            return
        assert session.finish is not None
        try:
            batch = session.finish(batch_bytes.views(memory, head.fields), head.epoch)
        except Exception as e:
            address = self._options.address
            self._fail(wrap_error(f"what is left to the client failed on a batch of {address}", e))
            return
        with self._changed:
            if head.key[0] == session.iteration.pass_number:
                session.inbox.add(
                    ReceivedBatch(head.key, head.epoch, head.end, head.is_last, batch)
                )
                self._changed.notify_all()

    def _fail(self, error: GpupipeError) -> None:
        with self._changed:
            self._session.iteration_error = error
            self._changed.notify_all()


def wrap_error(context: str, cause: Exception) -> GpupipeError:
    """Return the GpupipeError that reports `cause`, and chain `cause` to it.

    Returns `cause` itself if it is a GpupipeError. Returns an EngineError if this machine failed,
    for instance its GPU, and else a ServerError that begins with `context`.
    """
    if isinstance(cause, GpupipeError):
        return cause
    failure = machine_failure(cause)
    error = EngineError(failure) if failure else ServerError(f"{context}: {cause!r}")
    error.__cause__ = cause
    return error
