"""Messages that are decoded, and frames that are none."""

from pathlib import Path

import msgspec
import pytest

from gpupipe.protocol import batch_bytes, codec, messages
from helpers import forked_python
from helpers.lease_tables import hello

HELLO = hello("0" * 32, codecs=["lz4"], held=[(0, 1)], wants_shared_memory=True)


def _batch(
    fields: list[batch_bytes.TensorField], size: int, slot: batch_bytes.Slot | None = None
) -> bytes:
    return codec.encode(messages.BatchHeader((0, 0), 0, 1, False, fields, size, slot))


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        messages.StartIteration(1, 2, 3, -1),
        messages.Acknowledge([(1, 2)], [7]),
        messages.EndIteration(),
        messages.Ping(),
        messages.CloseSession("0" * 32, [(1, 2)]),
        messages.GetStats(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_a_client_says_comes_through(message: messages.ToServer) -> None:
    assert codec.decode_from_client([codec.encode(message)]) == message


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([], "0 frames"),
        ([b"\xc0"], "Expected"),
        ([codec.encode(messages.Ping()), b""], "2 frames"),
        ([b"x" * (codec.HEAD_LIMIT + 1)], "a head of"),
        ([codec.encode(messages.Confirm([]))], "Invalid value"),
        (
            [
                msgspec.msgpack.encode(
                    {
                        "type": "start iteration",
                        "iteration": -1,
                        "epoch": 0,
                        "position": 0,
                        "pass_number": 0,
                    }
                )
            ],
            ">= 0",
        ),
        ([msgspec.msgpack.encode({"type": "ping", "more": 1})], "unknown field"),
        (
            [msgspec.msgpack.encode({"type": "acknowledge", "keys": [[0, 0]] * 1001, "slots": []})],
            "length",
        ),
        ([codec.encode(msgspec.structs.replace(HELLO, token="no token"))], "regex"),
        ([b"\x91" * 60000], "Expected"),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_what_is_no_message_of_a_client_is_refused(frames: list[bytes], why: str) -> None:
    with pytest.raises(batch_bytes.MalformedMessage, match=why):
        codec.decode_from_client(frames)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (
            _batch([batch_bytes.TensorField("image", "uint8", (2**40, 2**40), False)], 5),
            "whose fields take",
        ),
        (_batch([batch_bytes.TensorField("image", "object", (1,), False)], 1), "dtype 'object'"),
        (_batch([batch_bytes.TensorField("a", "uint8", (8 << 30, 2), False)], 16 << 30), "limit"),
        (_batch([batch_bytes.TensorField("a", "uint8", (1,), False)] * 2, 65), "two fields"),
        (
            _batch(
                [batch_bytes.TensorField("a", "uint8", (9,), False)], 9, batch_bytes.Slot(0, 3, 8)
            ),
            "a slot of 8",
        ),
        (_batch([batch_bytes.TensorField("a", "uint8", (1,) * 9, False)], 1), "length"),
        (_batch([batch_bytes.TensorField("a", "uint8", (1, 2), True)], 2), "shape"),
        (
            msgspec.msgpack.encode(
                {
                    "type": "batch part",
                    "key": [0, 0],
                    "offset": 0,
                    "size": batch_bytes.PART_LIMIT + 1,
                    "codec": "",
                }
            ),
            "<=",
        ),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_sizes_that_do_not_add_up_are_refused_before_memory_is_taken(head: bytes, why: str) -> None:
    with pytest.raises(batch_bytes.MalformedMessage, match=why):
        codec.decode_from_server([head])


def test_a_part_comes_with_its_bytes() -> None:
    head = codec.encode(messages.BatchPart((0, 0), 0, 3, ""))
    assert codec.decode_from_server([head, b"abc"]) == messages.BatchPart((0, 0), 0, 3, "")
    with pytest.raises(batch_bytes.MalformedMessage, match="1 frames of BatchPart"):
        codec.decode_from_server([head])


def test_a_second_of_fuzzing() -> None:
    """Longer: python tests/fuzz/fuzz_wire.py --seconds 600."""
    script = Path(__file__).parents[1] / "fuzz" / "fuzz_wire.py"
    done = forked_python.run([script, "--seconds", "1"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inputs" in done.stdout
