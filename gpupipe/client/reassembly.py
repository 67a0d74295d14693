"""The bytes of batches as a client gets them: a slot of shared memory, or pieces that it puts
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gpupipe.protocol import compression, messages
from gpupipe.protocol.shared_memory import Buffers, Mapped, started


@dataclass
class _Coming:
    """A batch of which parts are missing."""

    head: messages.Batch
    memory: Tensor
    missing: int
    behind: int = 0


Whole = tuple[messages.Batch, Tensor]
"""A batch that is here, and its bytes, uint8."""


class Assembly:
    """keep: how many buffers are kept to be used again; gpu: the number of the GPU that batches are
    copied to, or None.
    """

    def __init__(self, keep: int, gpu: int | None) -> None:
        self._gpu = gpu
        self._mapped, self._buffers = Mapped(0), Buffers(keep, gpu)
        self._coming: _Coming | None = None

    def begin(self, pid: int) -> None:
        """What comes from here on is of a new connection. pid: the server's process."""
        self._mapped = Mapped(pid, self._gpu)
        self._coming = None

    def drop(self) -> None:
        """What is under way does not count."""
        self._coming = None

    def freed(self) -> list[int]:
        """Slots that may be used again, up to a hundred at once."""
        freed: list[int] = []
        while self._mapped.freed and len(freed) < 100:
            freed.append(self._mapped.freed.popleft())
        return freed

    @property
    def server_lives(self) -> bool:
        """Whether the server's process is there still, as far as this machine knows."""
        return bool(started(self._mapped.pid))

    def head(self, head: messages.Batch) -> Whole | None:
        """A batch begins; returned where all of it is here.

        Raises MalformedMessage where its slot cannot be opened.
        """
        if head.slot is not None:
            return head, self._mapped.tensor(head.slot, head.size)
        self._coming = _Coming(
            head, self._buffers.take(head.size), sum(field.nbytes for field in head.fields)
        )
        return self._whole(self._coming)

    def part(self, part: messages.Part, data: Any) -> Whole | None:
        """A piece; the batch, where it was the last. Raises MalformedMessage."""
        coming = self._coming
        if (
            coming is None or part.key != coming.head.key
        ):  # of a batch whose beginning went to a connection that is no more
            return None
        if part.offset < coming.behind or part.offset + part.size > coming.head.size:
            raise messages.MalformedMessage(
                f"a piece at byte {part.offset}, behind byte {coming.behind} of {coming.head.size}"
            )
        coming.memory.numpy().data[part.offset : part.offset + part.size] = compression.unpack(
            part.codec, data, part.size
        )
        coming.behind, coming.missing = part.offset + part.size, coming.missing - part.size
        return self._whole(coming)

    def _whole(self, coming: _Coming) -> Whole | None:
        if coming.missing > 0:
            return None
        self._coming = None
        return coming.head, coming.memory
