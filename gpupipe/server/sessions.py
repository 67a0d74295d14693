"""The sending half of a server: the connection of each session, its shared memory, and the queue of
messages to send.
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
_EXTRA_SLOTS = 2
"""Slots beyond hwm: a consumer's variable holds one batch until the next one is assigned to it, and
one slot is on its way back to the server.
"""


@dataclass
class Session:
    """The current connection of a client.

    Attributes:
        route: Identity of the connection in ZeroMQ's ROUTER socket.
        slots: Shared memory, or None if client and server cannot share any.
        codec: Compression of batches that go over the socket; "" for none.
        gone: The connection is closed; nothing more is sent over it.

    """

    route: bytes
    slots: Slots | None
    codec: str
    gone: bool = False


@dataclass
class SentBatch:
    """Counters since the start: batches sent, their bytes, and batches through shared memory."""

    batches: int = 0
    bytes: int = 0
    shared: int = 0


@dataclass
class Sessions:
    """All connections of a server. Callers hold the server's lock; for `send_batch`, which only the
    producer calls, they do not.

    Attributes:
        ledger: The leases; their outbox is sent from here.
        compress: Codec that the server is configured with, "none" for no compression.
        wake: Wakes the thread that owns the socket.
        lock: The server's lock.
        of: Sessions by client token.
        tokens: Client tokens by route.
        out: (route, frames) to send, in order.
        sent: Counters.
        here: Names this machine, process namespace and user; see shared_memory.place.

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
        """Open the session of a new connection, in place of the client's earlier one."""
        self.close(hello.token)
        shares = (
            hello.shared
            and self.here != ""
            and hello.place == self.here
            and started(hello.pid) == hello.started
        )
        codec = self.compress if self.compress in hello.codecs else ""
        self.of[hello.token] = Session(route, Slots(hwm + _EXTRA_SLOTS) if shares else None, codec)
        self.tokens[route] = hello.token

    def close(self, token: str) -> None:
        """Close a client's connection and free its slots. Does nothing if there is none."""
        old = self.of.pop(token, None)
        if old is not None:
            old.gone = True
            self.tokens.pop(old.route, None)
            if old.slots is not None:
                old.slots.close()

    def ended(self, hello: wire.Hello) -> bool:
        """Return whether the client's process runs on this machine and has ended."""
        return self.here != "" and hello.place == self.here and started(hello.pid) != hello.started

    def tell(self, token: str, message: wire.ToClient) -> None:
        """Queue a message to a client. Does nothing if the client has no connection."""
        if token in self.of:
            self.out.append((self.of[token].route, [wire.encode(message)]))

    def flush(self) -> None:
        """Queue the messages of the leases, close connections without a session, and wake the
        thread that sends.
        """
        for token, message in self.ledger.outbox:
            self.tell(token, message)
        self.ledger.outbox.clear()
        for token in [t for t in self.of if t not in self.ledger.clients]:
            self.close(token)
        self.wake()

    def send_batch(self, token: str, key: Key, plan: Plan, batch: Batch) -> None:
        """Send a batch through shared memory, or in pieces if no slot is free."""
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
