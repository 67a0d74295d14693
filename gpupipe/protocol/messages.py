"""What goes over a socket between a data processing server and its clients.

A message is one frame of msgpack, a struct of this file; behind a Part comes one frame more, a
piece of a batch. The bytes of a batch are those of its fields one behind another, each from a
multiple of 64 on. What comes in is checked before anything is allocated for it: kind and fields of
the message, lengths of lists, dtypes, shapes, and that the declared sizes add up. There is no
pickle, and nothing of a message is ever called or imported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, MsgspecError, Struct, msgpack

VERSION = 2
PIECE = 1 << 20
"""Bytes of a batch in a message: many small messages go twice as fast as one large one, since their
memory is used again.
"""
HEAD_LIMIT = 1 << 16
"""Bytes of the first frame, but for a Welcome or a State."""
MESSAGE_LIMIT = 4 << 20
"""Bytes of any frame; a peer that announces more is cut off by ZeroMQ."""
BATCH_LIMIT = 8 << 30
_ALIGNED = 64
WINDOW = 3
"""Batches that a client may have handed to its consumer before the server has confirmed them."""

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
"""The dtypes that can be sent, by torch's names, and their bytes."""

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Text = Annotated[str, Meta(max_length=300)]
Long = Annotated[str, Meta(max_length=4000)]
Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Key = tuple[Count, Count]
"""A batch: the number of the run that it is of, and its step in that run."""
Keys = Annotated[list[Key], Meta(max_length=1000)]


class MalformedMessage(Exception):
    """What came in is no message; the text says what of it."""


class _Message(Struct, forbid_unknown_fields=True, frozen=True):
    pass


class Field(NamedTuple):
    """A tensor of a batch. channels_last: its numbers lie in the order (B, H, W, C), whatever its
    shape (B, C, H, W) says.
    """

    name: Text
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=8)]
    channels_last: bool

    @property
    def nbytes(self) -> int:
        """Raises MalformedMessage for a dtype that is none."""
        if self.dtype not in ITEM or (self.channels_last and len(self.shape) != 4):
            raise MalformedMessage(
                f"field '{self.name}' has dtype '{self.dtype}' and shape {self.shape}"
            )
        return math.prod(self.shape) * ITEM[self.dtype]


# --- from a client


class Hello(_Message, tag="hello", frozen=True):
    """Who I am, also to a server that was started again. number: of this client's Hellos, so that
    none is heeded that was overtaken by a later one on another connection; holding: batches that
    are here, in the order in which they came; done: that were consumed; history: the one of the
    last Welcome, or "".
    """

    version: Count
    token: Token
    number: Count
    name: Text
    rank: Count
    world: Count
    hwm: Annotated[int, Meta(ge=1, le=1000)]
    place: Text
    """Host and process namespace: clients at the server's own place can use shared memory."""
    pid: Count
    started: Text
    shared: bool
    codecs: Annotated[list[Text], Meta(max_length=8)]
    holding: Keys
    done: Keys
    history: Text = ""


class Begin(_Message, tag="begin", frozen=True):
    """An iteration begins at a place, or goes on in a run where `run` is one (-1: none). number:
    the iteration's; asked: whether the user named the place, so that no other will do."""

    number: Count
    epoch: Count
    position: Count
    run: Annotated[int, Meta(ge=-1, lt=2**62)]
    asked: bool = False


class Done(_Message, tag="done", frozen=True):
    """These batches were consumed, in this order; the memory of these slots may be used again."""

    keys: Keys
    slots: Annotated[list[Count], Meta(max_length=1000)]


class Stop(_Message, tag="stop", frozen=True):
    """The iteration ended early: what was not consumed goes back.

    Also the answer to a Failed that is final.
    """


class Ping(_Message, tag="ping", frozen=True):
    """I am alive."""


class Bye(_Message, tag="bye", frozen=True):
    """I go; these were consumed, and all else goes back.

    From any connection, also a new one, and until it is answered with Gone.
    """

    token: Token
    done: Keys


class Ask(_Message, tag="ask", frozen=True):
    """How are you? Answered with State, whoever asks."""


# --- from the server


class Late(NamedTuple):
    """A client is new in the middle of a run.

    left: the steps that nobody has yet, of `steps`; readers: who else reads it.
    """

    left: Count
    steps: Count
    readers: Annotated[list[Text], Meta(max_length=8)]


class Welcome(_Message, tag="welcome", frozen=True):
    """You are known. history: names what the server knows of runs, also when it was started again;
    pid: of the server's process; yours: what you still hold, in order, all else being others' now;
    about: what is served.
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
    """The iteration `number` is in this run."""

    number: Count
    run: Count


class Slot(NamedTuple):
    """Shared memory: open file `fd` of the server's process."""

    number: Count
    fd: Count
    size: Count


class Batch(_Message, tag="batch", frozen=True):
    """A batch. Its bytes lie in `slot`, else they follow as Parts."""

    key: Key
    epoch: Count
    end: Count
    last: bool
    fields: Annotated[list[Field], Meta(max_length=64)]
    size: Count
    slot: Slot | None


class Part(_Message, tag="part", frozen=True):
    """A piece of the batch that is under way: the next frame, from byte `offset` on, `size` bytes
    when it is unpacked.
    """

    key: Key
    offset: Count
    size: Annotated[int, Meta(ge=1, le=PIECE)]
    codec: Annotated[str, Meta(max_length=8)]


class Confirm(_Message, tag="confirm", frozen=True):
    """These are noted down as consumed."""

    keys: Keys


class Revoke(_Message, tag="revoke", frozen=True):
    """You were silent: these were given to others, and must not be consumed."""

    keys: Keys


class Ended(_Message, tag="ended", frozen=True):
    """All batches of a run are consumed."""

    run: Count


class Refused(_Message, tag="refused", frozen=True):
    """No. again: whether it may be tried again later."""

    why: Long
    again: bool


class Failed(_Message, tag="failed", frozen=True):
    """The iteration ended with an error of gpupipe, of this class; path and reason: of a
    SampleError. final: whether the server ends with it too.
    """

    kind: Text
    text: Long
    path: Long
    reason: Long
    final: bool = False


class Pong(_Message, tag="pong", frozen=True):
    """I am alive."""


class Gone(_Message, tag="gone", frozen=True):
    """You said Bye."""


class Who(_Message, tag="who", frozen=True):
    """I do not know you: say Hello."""


class State(_Message, tag="state", frozen=True):
    """What `gpupipe status` shows."""

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
    """The first frame of a message."""
    return _encoder.encode(message)


def from_client(frames: Sequence[Any]) -> ToServer:
    """The message in frames (bytes-like) that a client sent. Raises MalformedMessage."""
    if len(frames) != 1:
        raise MalformedMessage(f"{len(frames)} frames, where a client sends one")
    if len(frames[0]) > HEAD_LIMIT:
        raise MalformedMessage(f"a head of {len(frames[0])} bytes")
    # what the decoder was made for
    return _decoded(_to_server, frames[0])  # type: ignore[no-any-return]


def from_server(frames: Sequence[Any]) -> ToClient:
    """The message in frames (bytes-like) that a server sent. Raises MalformedMessage."""
    if not frames or len(frames[0]) > MESSAGE_LIMIT:
        raise MalformedMessage("no head, or one that is too long")
    message = _decoded(_to_client, frames[0])
    if len(frames[0]) > HEAD_LIMIT and not isinstance(message, _MAY_BE_LONG):
        raise MalformedMessage(f"a head of {len(frames[0])} bytes")
    if len(frames) != 1 + isinstance(message, Part):
        raise MalformedMessage(f"{len(frames)} frames of {type(message).__name__}")
    if isinstance(message, Batch):
        check_sizes(message)
    return message  # type: ignore[no-any-return]  # what the decoder was made for


def _decoded(decoder: Any, frame: Any) -> Any:
    try:
        return decoder.decode(frame)
    except (MsgspecError, ValueError, RecursionError) as e:
        raise MalformedMessage(str(e)[:200]) from None


def offsets(fields: Sequence[Field]) -> tuple[list[int], int]:
    """Where each field begins among the bytes of a batch, and where the last one ends.

    Raises MalformedMessage.
    """
    starts, end = [], 0
    for field in fields:
        start = -(-end // _ALIGNED) * _ALIGNED
        starts.append(start)
        end = start + field.nbytes
    return starts, end


def check_sizes(batch: Batch) -> None:
    """Raises MalformedMessage where what a batch declares does not fit together, or is more than a
    batch may have.
    """
    end = offsets(batch.fields)[1]
    if end != batch.size or end > BATCH_LIMIT:
        raise MalformedMessage(
            f"a batch of {batch.size} bytes whose fields take {end}; the limit is {BATCH_LIMIT}"
        )
    if len({field.name for field in batch.fields}) != len(batch.fields):
        raise MalformedMessage("two fields of one name")
    if batch.slot is not None and batch.slot.size < batch.size:
        raise MalformedMessage(f"a slot of {batch.slot.size} bytes for {batch.size}")
