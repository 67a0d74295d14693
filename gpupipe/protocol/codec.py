"""Encodes and decodes messages, and validates what a peer sent.

A message is one msgpack frame. Only a BatchPart has a second frame: the bytes of the piece.

A message is validated before memory is allocated for it: types and limits of its fields, lengths of
lists, dtypes, shapes, and that the declared sizes add up. The protocol does not use pickle.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import MsgspecError, msgpack

from gpupipe.protocol import messages
from gpupipe.protocol.batch_bytes import MalformedMessage, offsets

HEAD_LIMIT = 1 << 16
"""Maximum size in bytes of the first frame of a message, except for SessionOpened and Stats."""
MESSAGE_LIMIT = 4 << 20
"""Maximum size of any frame in bytes. ZeroMQ disconnects a peer that announces a larger one."""
BATCH_LIMIT = 8 << 30
"""Maximum size of a batch in bytes."""
_encoder = msgpack.Encoder()
_to_server: msgpack.Decoder[messages.ToServer] = msgpack.Decoder(messages.ToServer)
_to_client: msgpack.Decoder[messages.ToClient] = msgpack.Decoder(messages.ToClient)
_MAY_BE_LONG = (messages.SessionOpened, messages.Stats)


def encode(message: messages.ToServer | messages.ToClient) -> bytes:
    """Encode a message with msgpack, as the first frame to send."""
    return _encoder.encode(message)


def decode_from_client(frames: Sequence[Any]) -> messages.ToServer:
    """Decode the frames of a client's message; raise MalformedMessage if the message is invalid."""
    if len(frames) != 1:
        raise MalformedMessage(f"{len(frames)} frames, where a client sends one")
    if len(frames[0]) > HEAD_LIMIT:
        raise MalformedMessage(f"a head of {len(frames[0])} bytes")
    return _decode(_to_server, frames[0])  # type: ignore[no-any-return]


def decode_from_server(frames: Sequence[Any]) -> messages.ToClient:
    """Decode the frames of a server's message; raise MalformedMessage if the message is invalid."""
    if not frames or len(frames[0]) > MESSAGE_LIMIT:
        raise MalformedMessage("no head, or one that is too long")
    message = _decode(_to_client, frames[0])
    if len(frames[0]) > HEAD_LIMIT and not isinstance(message, _MAY_BE_LONG):
        raise MalformedMessage(f"a head of {len(frames[0])} bytes")
    if len(frames) != 1 + isinstance(message, messages.BatchPart):
        raise MalformedMessage(f"{len(frames)} frames of {type(message).__name__}")
    if isinstance(message, messages.BatchHeader):
        _check_sizes(message)
    return message  # type: ignore[no-any-return]


def _decode(decoder: Any, frame: Any) -> Any:
    try:
        return decoder.decode(frame)
    except (MsgspecError, ValueError, RecursionError) as e:
        raise MalformedMessage(str(e)[:200]) from None


def _check_sizes(batch: messages.BatchHeader) -> None:
    """Raise MalformedMessage if a header declares wrong sizes, or if two fields have one name."""
    end = offsets(batch.fields)[1]
    if end != batch.size or end > BATCH_LIMIT:
        raise MalformedMessage(
            f"a batch of {batch.size} bytes whose fields take {end}; the limit is {BATCH_LIMIT}"
        )
    if len({field.name for field in batch.fields}) != len(batch.fields):
        raise MalformedMessage("two fields of one name")
    if batch.slot is not None and batch.slot.size < batch.size:
        raise MalformedMessage(f"a slot of {batch.slot.size} bytes for {batch.size}")
