"""Fuzzing of everything that takes what a peer sent: frames, pieces of batches, compressed pieces.

    python tests/fuzz/fuzz_wire.py --seconds 600

Inputs are real messages with bits flipped, cut, joined and repeated, and plain noise. Whatever
comes in, the answer is a message or Malformed, within the memory that the limits of the wire format
allow. It ends with status 1 at the first input that is taken otherwise, and prints it.
"""

import argparse
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable

import torch

from gpupipe.protocol import batch_bytes, codec, messages

_MAX_MEMORY_MIB = 512
_KEYS = [(0, 1), (2**40, 7)]


def seeds() -> list[bytes]:
    """Real messages of every kind."""
    fields = [
        batch_bytes.TensorField("image", "uint8", (4, 3, 8, 8), False),
        batch_bytes.TensorField("label", "int64", (4,), False),
    ]
    hello = messages.OpenSession(
        version=messages.VERSION,
        token="0123456789abcdef" * 2,
        number=1,
        name="host:1",
        rank=0,
        world_size=1,
        hwm=10,
        host_id="here",
        pid=1,
        process_started="2",
        wants_shared_memory=True,
        codecs=["lz4", "zstd"],
        held=_KEYS,
        consumed=_KEYS,
    )
    about = {"name": "x", "data": {"count": 5}, "pipeline": {"steps": [{"decode": {}}]}}
    to_server = [
        hello,
        messages.StartIteration(1, 2, 3, -1),
        messages.Acknowledge(_KEYS, [1, 2]),
        messages.EndIteration(),
        messages.Ping(),
        messages.CloseSession("0123456789abcdef" * 2, _KEYS),
        messages.GetStats(),
    ]
    to_client = [
        messages.SessionOpened(1, "0" * 32, 1, _KEYS, 0, 0, 0, 1, about),
        messages.IterationStarted(1, 2),
        messages.Confirm(_KEYS),
        messages.Revoke(_KEYS),
        messages.PassEnded(1),
        messages.UnknownSession(),
        messages.BatchHeader((0, 1), 0, 4, False, fields, batch_bytes.offsets(fields)[1], None),
        messages.BatchHeader((0, 1), 0, 4, True, fields, 800, batch_bytes.Slot(1, 2, 4096)),
        messages.BatchPart((0, 1), 0, 100, "lz4"),
        messages.Refused("why", True),
        messages.Failed("SampleError", "text", "path", "reason"),
        messages.Pong(),
        messages.Stats(about),
    ]
    packed = [
        batch_bytes.compress(name, bytes(4096)) or b"" for name in batch_bytes.installed_codecs()
    ]
    return [codec.encode(m) for m in [*to_server, *to_client]] + packed


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """An input near a real message."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(0, 6)):
        kind, place = rng.randrange(6), rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[place : place + rng.randint(1, 8)]
        elif kind == 2:
            data[place:place] = rng.randbytes(rng.randint(1, 8))
        elif kind == 3:
            data[place:place] = rng.choice(
                [
                    b"\xdd\xff\xff\xff\xff",
                    b"\xc6\xff\xff\xff\xff",
                    b"\xcf" + b"\xff" * 8,
                    b"\xdf\x7f\xff\xff\xff",
                    b"\xdb\x7f\xff\xff\xff",
                    b"\x91" * 40,
                ]
            )
        elif kind == 4:
            data += rng.choice(corpus)
        else:
            data = bytearray(rng.randbytes(rng.randint(0, 64)))
    return bytes(data)


def _server_side(data: bytes, rng: random.Random) -> None:
    codec.decode_from_client([data] * rng.choice([1, 1, 1, 0, 2]))


def _client_side(data: bytes, rng: random.Random) -> None:
    message = codec.decode_from_server([data, *[b"abc"] * rng.choice([0, 0, 1, 2])])
    if isinstance(message, messages.BatchHeader) and message.size < 1 << 20:
        batch_bytes.views(torch.zeros(message.size, dtype=torch.uint8), message.fields)


def _codec(data: bytes, rng: random.Random) -> None:
    found = batch_bytes.decompress(
        rng.choice(["", "gzip", *batch_bytes.CODECS]),
        data,
        size := rng.choice([1, 64, 4096, batch_bytes.PART_LIMIT]),
    )
    assert len(found) == size


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, corpus = random.Random(arguments.seed), seeds()
    targets: list[Callable[[bytes, random.Random], None]] = [_server_side, _client_side, _codec]
    results: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        data, target = mutated(rng, corpus), rng.choice(targets)
        try:
            target(data, rng)
            results["taken"] += 1
        except batch_bytes.MalformedMessage:
            results["refused"] += 1
        except Exception:
            traceback.print_exc()
            print(f"{target.__name__}: {data!r}")
            return 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{results.total():,} inputs in {arguments.seconds:g} s: {dict(results)}; "
        f"{grown:.0f} MiB more memory at most"
    )
    return int(grown > _MAX_MEMORY_MIB)


if __name__ == "__main__":
    sys.exit(main())
