"""What a client reads: a pass of the server over an epoch (Iteration), the batches that the client
holds (Inbox), and the batch that arrives in pieces (Reassembly).

All three are plain state, without sockets, threads or clocks. The inbox is the client's half of the
protocol. The head of server/batch_leases.py states the rules of the protocol.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from gpupipe.protocol import batch_bytes, messages, peers
from gpupipe.protocol.batch_bytes import MalformedMessage
from gpupipe.protocol.messages import MAX_UNACKED, Key
from gpupipe.protocol.shared_memory import Buffers, Mapped


class ReceivedBatch(NamedTuple):
    """A batch that is ready for the consumer.

    Attributes:
        head: Key, epoch and position of the batch.
        batch: The finished batch, as the `finish` function of the iteration returned it.
    """

    head: messages.BatchHeader
    batch: Any


@dataclass
class Iteration:
    """The iteration of a consumer: the server's pass over an epoch, and the position in the epoch.

        stopped ──start──> starting ──enter──> reading ──end_pass──> starting, at the end of a pass
           ^                  └──────────────stop──────────────┘
           └────────────────────────────────────┘

    When a pass ends, the client asks for the next epoch at once, so that batches arrive before the
    consumer needs them. The consumer continues with that epoch, or starts at another position.

    Attributes:
        number: Number of the iteration, counted by the client. IterationStarted repeats it, so that
            the client can ignore messages about earlier iterations.
        position: (epoch, number of samples of the epoch that were read), or None if stopped.
        pass_number: Number of the pass that the client reads; -1 until the server has named it.
        is_at_end: A pass has ended, and the consumer has not continued with the next one yet.
        is_explicit: The user named the position, so the server must not choose another one.
        is_shared: Other clients read this pass, or have read it. So `position` does not say which
            earlier samples were consumed.
    """

    number: int = 0
    position: tuple[int, int] | None = None
    pass_number: int = -1
    is_at_end: bool = False
    is_explicit: bool = False
    is_shared: bool = False

    @property
    def epoch(self) -> int:
        """Epoch of the position; 0 if stopped."""
        return self.position[0] if self.position is not None else 0

    def start(
        self, epoch: int, position: int, is_explicit: bool = False
    ) -> messages.StartIteration:
        """Start an iteration, and return the StartIteration message to send."""
        self.number += 1
        self.position, self.pass_number = (epoch, position), -1
        self.is_at_end, self.is_explicit, self.is_shared = False, is_explicit, False
        return messages.StartIteration(self.number, epoch, position, -1, is_explicit)

    def continue_at(self, epoch: int, position: int) -> bool:
        """Continue with the epoch that the client asked for when the last pass ended.

        Return False if the caller must start an iteration instead: no pass has just ended, or the
        client asked for another position.
        """
        is_started = self.is_at_end and self.position == (epoch, position)
        self.is_at_end = False
        return is_started

    def enter(self, message: messages.IterationStarted) -> None:
        """Enter the pass that the message names, and note whether other clients read it too.

        Ignores messages about other iterations.
        """
        if message.iteration == self.number and self.position is not None:
            was_shared = self.is_shared and self.pass_number == message.pass_number
            self.is_shared = was_shared or message.is_shared
            self.pass_number, self.is_explicit = message.pass_number, False

    def end_pass(self, pass_number: int) -> messages.StartIteration | None:
        """End a pass, and return the message that asks the server for the next epoch.

        Return None if the client does not read the pass `pass_number`.
        """
        if pass_number != self.pass_number or self.position is None:
            return None
        message = self.start(self.position[0] + 1, 0)
        self.is_at_end = True
        return message

    def stop(self) -> bool:
        """Stop the iteration. Return False if it was already stopped."""
        if self.position is None:
            return False
        self.position, self.pass_number, self.is_at_end = None, -1, False
        self.is_shared = False
        return True

    def resume(self, is_same_history: bool) -> messages.StartIteration | None:
        """Return the message that continues the iteration after a reconnect; None if stopped.

        `is_same_history`: whether the server still knows the pass. If not, the message names none.
        """
        if self.position is None:
            return None
        pass_number = self.pass_number if is_same_history else -1
        return messages.StartIteration(self.number, *self.position, pass_number, self.is_explicit)


@dataclass
class Inbox:
    """The batches that a client holds, in the order in which they were leased.

    Attributes:
        unconfirmed: Batches that the client has acknowledged and the server has not confirmed yet.
        taken: Batches that the consumer has taken and not acknowledged.
        waiting: Batches that wait for the consumer.
    """

    unconfirmed: list[Key] = field(default_factory=list)
    taken: list[Key] = field(default_factory=list)
    waiting: deque[ReceivedBatch] = field(default_factory=deque)

    @property
    def keys(self) -> list[Key]:
        """Keys of the batches that are not consumed: those taken, then those that wait."""
        return [*self.taken, *(batch.head.key for batch in self.waiting)]

    def add(self, batch: ReceivedBatch) -> None:
        """Queue a batch for the consumer. Ignores a batch that is already held or acknowledged."""
        if batch.head.key not in self.keys and batch.head.key not in self.unconfirmed:
            self.waiting.append(batch)

    @property
    def can_take(self) -> bool:
        """Whether the consumer may take a batch.

        A batch must wait, and fewer than MAX_UNACKED batches may be taken or unconfirmed.
        """
        return bool(self.waiting) and len(self.unconfirmed) + len(self.taken) < MAX_UNACKED

    def take(self) -> ReceivedBatch | None:
        """Move the next batch from `waiting` to `taken`, and return it; None if not `can_take`."""
        if not self.can_take:
            return None
        batch = self.waiting.popleft()
        self.taken.append(batch.head.key)
        return batch

    def consume(self, key: Key) -> bool:
        """Move a batch from `taken` to `unconfirmed`. Return False if it is not in `taken`."""
        if key not in self.taken:
            return False
        self.taken.remove(key)
        self.unconfirmed.append(key)
        return True

    def confirm(self, keys: Sequence[Key]) -> None:
        """Forget acknowledged batches that the server has confirmed."""
        self.unconfirmed = [key for key in self.unconfirmed if key not in keys]

    def revoke(self, keys: Sequence[Key]) -> None:
        """Drop the waiting batches with these keys: the server has put them back into its queue."""
        self.waiting = deque(batch for batch in self.waiting if batch.head.key not in keys)

    def keep_only(self, leased: Sequence[Key]) -> None:
        """Drop the batches in `waiting` whose keys are not in `leased`.

        The batches in `taken` stay, because the consumer has them already.
        """
        self.waiting = deque(batch for batch in self.waiting if batch.head.key in leased)

    def drop(self) -> None:
        """Drop the taken and the waiting batches, because their iteration is over."""
        self.taken.clear()
        self.waiting.clear()


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
    """Joins the pieces of the batches that arrive over one connection, one batch at a time.

    Args:
        num_kept: Number of free buffers to keep for reuse.
        gpu: Index of the GPU that the memory is page-locked for, or None.
    """

    def __init__(self, num_kept: int, gpu: int | None) -> None:
        self._gpu = gpu
        self._mapped, self._buffers = Mapped(0), Buffers(num_kept, gpu)
        self._incomplete: _Incomplete | None = None

    def connect(self, pid: int) -> None:
        """Prepare for batches of the server process `pid`, and forget an earlier server."""
        self._mapped = Mapped(pid, self._gpu)
        self._incomplete = None

    def drop_incomplete(self) -> None:
        """Drop the batch whose pieces have not all arrived."""
        self._incomplete = None

    def take_freed_slots(self) -> list[int]:
        """Return the numbers of up to 100 slots of shared memory that the server may reuse.

        The number of a freed slot is returned once.
        """
        freed: list[int] = []
        while self._mapped.freed and len(freed) < 100:
            freed.append(self._mapped.freed.popleft())
        return freed

    @property
    def is_server_alive(self) -> bool:
        """Whether a process with the server's process id runs on this machine."""
        return bool(peers.start_time(self._mapped.pid))

    def start(self, head: messages.BatchHeader) -> Whole | None:
        """Begin a batch. Return the batch if no pieces follow: it is in shared memory, or empty.

        Raises MalformedMessage if the batch's slot in shared memory cannot be opened.
        """
        if head.slot is not None:
            return head, self._mapped.tensor(head.slot, head.size)
        self._incomplete = _Incomplete(
            head, self._buffers.take(head.size), sum(field.nbytes for field in head.fields)
        )
        return self._whole(self._incomplete)

    def add_part(self, part: messages.BatchPart, data: Any) -> Whole | None:
        """Add a piece of a batch. Return the batch if the piece completes it.

        Raises MalformedMessage if the piece overlaps the one before, exceeds the batch, or cannot
        be decompressed.
        """
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
