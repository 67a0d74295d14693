"""The messages between a data processing server and its clients.

A message is one msgpack frame that holds a struct of this file. After a Part follows a second
frame, a piece of a batch. A batch is the bytes of its fields, one after another, each aligned to 64
bytes.

Incoming messages are validated before memory is allocated for them: type and fields of the message,
lengths of lists, dtypes, shapes, and that the declared sizes add up. There is no pickle, and no
content of a message is ever called or imported.

server/leases.py explains the protocol and its terms. `run` is the number of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, MsgspecError, Struct, msgpack

VERSION = 2
PIECE = 1 << 20
"""Most bytes of a batch in one Part. Many small messages are twice as fast as a large one, since
their memory is reused.
"""
HEAD_LIMIT = 1 << 16
"""Most bytes of the first frame of a message other than Welcome and State."""
MESSAGE_LIMIT = 4 << 20
"""Most bytes of any frame. ZeroMQ disconnects a peer that announces more."""
BATCH_LIMIT = 8 << 30
"""Most bytes of a batch."""
_ALIGNMENT = 64
WINDOW = 3
"""Number of batches that a client may hand to its consumer before the server confirms the first."""

ITEM = {
    "uint8": 1,
    "int8": 1,
    "bool": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}
"""Dtypes that can be sent, by their names in torch, and the size of an element in bytes."""

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Text = Annotated[str, Meta(max_length=300)]
Long = Annotated[str, Meta(max_length=4000)]
Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Key = tuple[Count, Count]
"""Identifies a batch: (number of its pass, its step in that pass)."""
Keys = Annotated[list[Key], Meta(max_length=1000)]


class MalformedMessage(Exception):
    """A received message is invalid; the text says why."""


class _Message(Struct, forbid_unknown_fields=True, frozen=True):
    pass


class Field(NamedTuple):
    """A tensor of a batch.

    Attributes:
        name: Name of the field, such as "image".
        dtype: A key of ITEM.
        shape: Shape of the tensor.
        channels_last: The shape is (B, C, H, W), but the elements lie in memory as (B, H, W, C).

    """

    name: Text
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=8)]
    channels_last: bool

    @property
    def nbytes(self) -> int:
        """Size in bytes. Raises MalformedMessage for an unknown dtype."""
        if self.dtype not in ITEM or (self.channels_last and len(self.shape) != 4):
            raise MalformedMessage(
                f"field '{self.name}' has dtype '{self.dtype}' and shape {self.shape}"
            )
        return math.prod(self.shape) * ITEM[self.dtype]


# --- from a client


class Hello(_Message, tag="hello", frozen=True):
    """Opens a session, or continues it after the connection or the server was replaced.

    Attributes:
        version: The client's VERSION.
        token: Identifies the client over reconnects; random.
        number: Counts the client's Hellos. The server ignores a Hello that a later one on another
            connection has overtaken.
        name: HOST:PID, for messages to users.
        rank: Rank of the client, from 0.
        world: Number of ranks; 1 takes any free partition.
        hwm: Number of batches that the client wants to hold.
        place: Names the machine, process namespace and user; see shared_memory.place. Client and
            server at the same place can share memory.
        pid: Process id of the client.
        started: Start time of that process, in the kernel's units; see shared_memory.started.
        shared: The client wants batches through shared memory.
        codecs: Codecs that the client can unpack.
        holding: Batches that the client holds and has not consumed, in order of arrival.
        done: Batches that were consumed and are not confirmed yet.
        history: `history` of the last Welcome, or "".

    """

    version: Count
    token: Token
    number: Count
    name: Text
    rank: Count
    world: Count
    hwm: Annotated[int, Meta(ge=1, le=1000)]
    place: Text
    pid: Count
    started: Text
    shared: bool
    codecs: Annotated[list[Text], Meta(max_length=8)]
    holding: Keys
    done: Keys
    history: Text = ""


class Begin(_Message, tag="begin", frozen=True):
    """Starts an iteration at a position, or continues one in a pass.

    Attributes:
        number: Counts the client's iterations.
        epoch: Epoch to read.
        position: Number of samples of the epoch to leave out.
        run: The pass to continue, or -1 for none.
        asked: The user named the position, so the server must not choose another one.

    """

    number: Count
    epoch: Count
    position: Count
    run: Annotated[int, Meta(ge=-1, lt=2**62)]
    asked: bool = False


class Done(_Message, tag="done", frozen=True):
    """Acknowledges batches and frees slots.

    Attributes:
        keys: Batches that were consumed, in this order.
        slots: Numbers of slots of shared memory that the server may reuse.

    """

    keys: Keys
    slots: Annotated[list[Count], Meta(max_length=1000)]


class Stop(_Message, tag="stop", frozen=True):
    """Ends the iteration early: the server requeues all batches that were not consumed.

    It also answers a Failed that is final.
    """


class Ping(_Message, tag="ping", frozen=True):
    """Heartbeat of a client."""


class Bye(_Message, tag="bye", frozen=True):
    """Ends the session: the server requeues all batches that were not consumed.

    The client repeats it, on any connection, until the server answers with Gone.

    Attributes:
        token: The client's token.
        done: Batches that were consumed and are not confirmed yet.

    """

    token: Token
    done: Keys


class Ask(_Message, tag="ask", frozen=True):
    """Requests the metrics of a server. State answers it; a session is not needed."""


# --- from the server


class Late(NamedTuple):
    """What a client misses that joins in the middle of a pass.

    Attributes:
        left: Number of steps that are neither leased nor done.
        steps: Number of all steps of the pass.
        readers: Names of other clients of the partition, at most four.

    """

    left: Count
    steps: Count
    readers: Annotated[list[Text], Meta(max_length=8)]


class Welcome(_Message, tag="welcome", frozen=True):
    """Answers Hello: the client has a session.

    Attributes:
        version: The server's VERSION.
        history: Names the server's sequence of passes. A restart that resumes keeps the name.
        pid: Process id of the server.
        yours: Batches that the client still leases, in order. It drops all others.
        epoch: Epoch where the client begins if its user names no position.
        position: Number of samples of that epoch to leave out.
        rank: Rank of the client's partition over all servers.
        world: Number of ranks over all servers.
        about: Describes what is served; see engines/remote/welcome.py.
        late: What the client misses of the current pass, or None.

    """

    version: Count
    history: Token
    pid: Count
    yours: Keys
    epoch: Count
    position: Count
    rank: Count
    world: Count
    about: dict[str, Any]
    late: Late | None = None


class Begun(_Message, tag="begun", frozen=True):
    """The client's iteration has entered a pass.

    Attributes:
        number: The iteration, as in Begin.
        run: The pass.

    """

    number: Count
    run: Count


class Slot(NamedTuple):
    """A slot of shared memory.

    Attributes:
        number: Identifies the slot.
        fd: Descriptor of its file in the server's process.
        size: Size in bytes.

    """

    number: Count
    fd: Count
    size: Count


class Batch(_Message, tag="batch", frozen=True):
    """A batch, or the head of one whose bytes follow as Parts.

    Attributes:
        key: Identifies the batch.
        epoch: Its epoch.
        end: Number of samples of the epoch that all ranks have had after it.
        last: It is the last batch of the pass that this client gets.
        fields: Its tensors.
        size: Size in bytes, with padding.
        slot: The slot that holds its bytes, or None if they follow as Parts.

    """

    key: Key
    epoch: Count
    end: Count
    last: bool
    fields: Annotated[list[Field], Meta(max_length=64)]
    size: Count
    slot: Slot | None


class Part(_Message, tag="part", frozen=True):
    """A piece of the batch whose head was sent last. The next frame holds its bytes.

    Attributes:
        key: Identifies the batch.
        offset: Where the piece begins in the batch, in bytes.
        size: Size of the unpacked piece in bytes.
        codec: How it is compressed: "lz4", "zstd" or "" for not at all.

    """

    key: Key
    offset: Count
    size: Annotated[int, Meta(ge=1, le=PIECE)]
    codec: Annotated[str, Meta(max_length=8)]


class Confirm(_Message, tag="confirm", frozen=True):
    """Confirms acknowledgements: the server has logged these batches as consumed."""

    keys: Keys


class Revoke(_Message, tag="revoke", frozen=True):
    """The client was silent, and the server requeued these batches: it must not consume them."""

    keys: Keys


class Ended(_Message, tag="ended", frozen=True):
    """All batches of a pass are consumed."""

    run: Count


class Refused(_Message, tag="refused", frozen=True):
    """The server refuses a request.

    Attributes:
        why: The reason, for the user.
        again: The same request may succeed later.

    """

    why: Long
    again: bool


class Failed(_Message, tag="failed", frozen=True):
    """An error ended the client's iteration.

    Attributes:
        kind: Name of the exception's class.
        text: Its message.
        path: `path` of a SampleError, else "".
        reason: `reason` of a SampleError, else "".
        final: The server ends too.

    """

    kind: Text
    text: Long
    path: Long
    reason: Long
    final: bool = False


class Pong(_Message, tag="pong", frozen=True):
    """Answers Ping: heartbeat of the server."""


class Gone(_Message, tag="gone", frozen=True):
    """Answers Bye: the session has ended."""


class Who(_Message, tag="who", frozen=True):
    """The connection has no session: the client must say Hello."""


class State(_Message, tag="state", frozen=True):
    """Answers Ask: the metrics that `gpupipe status` shows."""

    facts: dict[str, Any]


ToServer = Hello | Begin | Done | Stop | Ping | Bye | Ask
ToClient = (
    Welcome
    | Begun
    | Batch
    | Part
    | Confirm
    | Revoke
    | Ended
    | Refused
    | Failed
    | Pong
    | Gone
    | Who
    | State
)

_encoder = msgpack.Encoder()
_to_server: msgpack.Decoder[ToServer] = msgpack.Decoder(ToServer)
_to_client: msgpack.Decoder[ToClient] = msgpack.Decoder(ToClient)
_MAY_BE_LONG = (Welcome, State)


def encode(message: ToServer | ToClient) -> bytes:
    """Encode a message as its first frame."""
    return _encoder.encode(message)


def from_client(frames: Sequence[Any]) -> ToServer:
    """Decode and validate the frames of a client's message. Raises MalformedMessage."""
    if len(frames) != 1:
        raise MalformedMessage(f"{len(frames)} frames, where a client sends one")
    if len(frames[0]) > HEAD_LIMIT:
        raise MalformedMessage(f"a head of {len(frames[0])} bytes")
    return _decode(_to_server, frames[0])  # type: ignore[no-any-return]


def from_server(frames: Sequence[Any]) -> ToClient:
    """Decode and validate the frames of a server's message. Raises MalformedMessage."""
    if not frames or len(frames[0]) > MESSAGE_LIMIT:
        raise MalformedMessage("no head, or one that is too long")
    message = _decode(_to_client, frames[0])
    if len(frames[0]) > HEAD_LIMIT and not isinstance(message, _MAY_BE_LONG):
        raise MalformedMessage(f"a head of {len(frames[0])} bytes")
    if len(frames) != 1 + isinstance(message, Part):
        raise MalformedMessage(f"{len(frames)} frames of {type(message).__name__}")
    if isinstance(message, Batch):
        check_sizes(message)
    return message  # type: ignore[no-any-return]


def _decode(decoder: Any, frame: Any) -> Any:
    try:
        return decoder.decode(frame)
    except (MsgspecError, ValueError, RecursionError) as e:
        raise MalformedMessage(str(e)[:200]) from None


def offsets(fields: Sequence[Field]) -> tuple[list[int], int]:
    """Return the offset of each field in a batch, and the size of the batch, in bytes.

    Raises MalformedMessage for an unknown dtype.
    """
    starts, end = [], 0
    for field in fields:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        starts.append(start)
        end = start + field.nbytes
    return starts, end


def check_sizes(batch: Batch) -> None:
    """Raise MalformedMessage if a batch's declared sizes contradict or exceed BATCH_LIMIT."""
    end = offsets(batch.fields)[1]
    if end != batch.size or end > BATCH_LIMIT:
        raise MalformedMessage(
            f"a batch of {batch.size} bytes whose fields take {end}; the limit is {BATCH_LIMIT}"
        )
    if len({field.name for field in batch.fields}) != len(batch.fields):
        raise MalformedMessage("two fields of one name")
    if batch.slot is not None and batch.slot.size < batch.size:
        raise MalformedMessage(f"a slot of {batch.slot.size} bytes for {batch.size}")
