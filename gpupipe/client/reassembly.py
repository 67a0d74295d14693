"""Reassembles the bytes of batches on a client: from a slot of shared memory, or from pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gpupipe.protocol import batch_layout, compression, messages, processes
from gpupipe.protocol.shared_memory import Buffers, Mapped


@dataclass
class _Incomplete:
    """A batch of which parts are missing.

    Attributes:
        head: Its message.
        memory: Receives its bytes, uint8.
        missing: Number of bytes still to come, without padding.
        end: End of the last piece so far, in bytes.
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
        keep: Number of free buffers to keep for reuse.
        gpu: Index of the GPU that the memory is page-locked for, or None.
    """

    def __init__(self, keep: int, gpu: int | None) -> None:
        self._gpu = gpu
        self._mapped, self._buffers = Mapped(0), Buffers(keep, gpu)
        self._incomplete: _Incomplete | None = None

    def connect(self, pid: int) -> None:
        """Start again for a new connection. `pid`: process id of the server."""
        self._mapped = Mapped(pid, self._gpu)
        self._incomplete = None

    def drop_incomplete(self) -> None:
        """Drop the batch of which parts are missing."""
        self._incomplete = None

    def take_freed_slots(self) -> list[int]:
        """Return up to 100 slots that the server may reuse. Each is returned once."""
        freed: list[int] = []
        while self._mapped.freed and len(freed) < 100:
            freed.append(self._mapped.freed.popleft())
        return freed

    @property
    def is_server_alive(self) -> bool:
        """Whether a process with the server's process id runs on this machine."""
        return bool(processes.start_time(self._mapped.pid))

    def start(self, head: messages.BatchHeader) -> Whole | None:
        """Start a batch. Return it if it is complete, since it lies in shared memory or is empty.

        Raises MalformedMessage if its slot cannot be opened.
        """
        if head.slot is not None:
            return head, self._mapped.tensor(head.slot, head.size)
        self._incomplete = _Incomplete(
            head, self._buffers.take(head.size), sum(field.nbytes for field in head.fields)
        )
        return self._whole(self._incomplete)

    def add_part(self, part: messages.BatchPart, data: Any) -> Whole | None:
        """Add a piece. Return the batch if it is complete now. Raises MalformedMessage."""
        batch = self._incomplete
        # the head of this piece's batch was dropped, or went to an earlier connection
        if batch is None or part.key != batch.head.key:
            return None
        if part.offset < batch.end or part.offset + part.size > batch.head.size:
            raise batch_layout.MalformedMessage(
                f"a piece at byte {part.offset}, past byte {batch.end} of {batch.head.size}"
            )
        batch.memory.numpy().data[part.offset : part.offset + part.size] = compression.unpack(
            part.codec, data, part.size
        )
        batch.end, batch.missing = part.offset + part.size, batch.missing - part.size
        return self._whole(batch)

    def _whole(self, batch: _Incomplete) -> Whole | None:
        if batch.missing > 0:
            return None
        self._incomplete = None
        return batch.head, batch.memory
