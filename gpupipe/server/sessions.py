"""The sending half of a server: which client is behind which connection, its shared memory, and
what is on its way to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpupipe.engines.base import Batch
from gpupipe.protocol import compression
from gpupipe.protocol import messages as wire
from gpupipe.protocol.messages import Key
from gpupipe.protocol.shared_memory import Slots, place, started
from gpupipe.protocol.tensors import fields_of, fill, pieces
from gpupipe.sampling.sampler import Plan
from gpupipe.server.leases import Leases

Frames = list[Any]
_HELD_BESIDE = 2
"""Slots beyond hwm: a consumer's variable holds a batch until it has the next, and one is on its
way back.
"""


@dataclass
class Session:
    """A client's connection.

    route: ZeroMQ's name of it; slots: shared memory, where client and server can share it.
    """

    route: bytes
    slots: Slots | None
    codec: str
    gone: bool = False


@dataclass
class SentBatch:
    """What was sent since the start."""

    batches: int = 0
    bytes: int = 0
    shared: int = 0


@dataclass
class Sessions:
    """All sessions. What leaves gathers in `out`, in order; all is under the server's lock, but
    `send_batch`, which only the producer calls.
    """

    ledger: Leases
    compress: str
    wake: Callable[[], None]
    lock: Any
    of: dict[str, Session] = field(default_factory=dict)
    tokens: dict[bytes, str] = field(default_factory=dict)
    out: deque[tuple[bytes, Frames]] = field(default_factory=deque)
    sent: SentBatch = field(default_factory=SentBatch)
    here: str = field(default_factory=place)

    def open(self, route: bytes, hello: wire.Hello, hwm: int) -> None:
        """A client's connection is new."""
        self.close(hello.token)
        shares = (
            hello.shared
            and self.here != ""
            and hello.place == self.here
            and started(hello.pid) == hello.started
        )
        codec = self.compress if self.compress in hello.codecs else ""
        self.of[hello.token] = Session(route, Slots(hwm + _HELD_BESIDE) if shares else None, codec)
        self.tokens[route] = hello.token

    def close(self, token: str) -> None:
        """A client, or its connection, is gone."""
        old = self.of.pop(token, None)
        if old is not None:
            old.gone = True
            self.tokens.pop(old.route, None)
            if old.slots is not None:
                old.slots.close()

    def ended(self, hello: wire.Hello) -> bool:
        """Whether the process of a client is known to be no more."""
        return self.here != "" and hello.place == self.here and started(hello.pid) != hello.started

    def tell(self, token: str, message: wire.ToClient) -> None:
        if token in self.of:
            self.out.append((self.of[token].route, [wire.encode(message)]))

    def flush(self) -> None:
        """Put what the ledger has to say behind what is there; forget clients that it does not know
        any more; let the other thread send.
        """
        for token, message in self.ledger.outbox:
            self.tell(token, message)
        self.ledger.outbox.clear()
        for token in [t for t in self.of if t not in self.ledger.clients]:
            self.close(token)
        self.wake()

    def send_batch(self, token: str, key: Key, plan: Plan, batch: Batch) -> None:
        """Send a batch, through shared memory where there is a slot, else in pieces."""
        fields = fields_of(batch)
        size = wire.offsets(fields)[1]
        with self.lock:
            session = self.of.get(token)
            taken = (
                session.slots.take(size)
                if session is not None and session.slots is not None
                else None
            )
        if session is None:
            return
        head = wire.Batch(key, plan.epoch, plan.end, plan.last, fields, size, taken and taken[0])
        if taken is not None:
            fill(taken[1], batch)
            messages: list[Frames] = []
        else:
            messages = [_part(key, start, data, session.codec) for start, data in pieces(batch)]
        with self.lock:
            if not session.gone:
                self.out.extend(
                    (session.route, frames) for frames in [[wire.encode(head)], *messages]
                )
            self.sent.batches, self.sent.bytes, self.sent.shared = (
                self.sent.batches + 1,
                self.sent.bytes + size,
                self.sent.shared + (taken is not None),
            )
        self.wake()


def _part(key: Key, start: int, data: memoryview, codec: str) -> Frames:
    packed = compression.pack(codec, data) if codec else None
    return [
        wire.encode(wire.Part(key, start, len(data), codec if packed is not None else "")),
        data if packed is None else packed,
    ]
