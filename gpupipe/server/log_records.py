"""The records of a write-ahead log: their types, and their form on disk.

A record is a line: a checksum, a blank, and JSON. The first line is the `Head`; every other line is
one `Record`. The last line may be torn, because the process was killed while it wrote: the reader
drops it, since no message about it was sent. Any other line with a wrong checksum is damage. The
lines of the first versions have no checksum, and are read too.

    0c9a6f11 {"history":"5d0e...","serves":{"seed":1},"version":1}
    5bd2ab3e ["client","8f14...","0","node1:4242","",4242,"99"]
    7c6d7f0a ["run","0",0,0,0,1200]
    93e8f2c4 ["lease",0,0,"8f14..."]
    1a2b3c4d ["done",0,0]
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

from msgspec import MsgspecError, Struct, json

from gpupipe.errors import StateError

VERSION = 1
"""Version of the records. Count it up if an older gpupipe would misread the file."""


class Head(Struct, frozen=True):
    """The first record of a file.

    Attributes:
        history: Names the sequence of passes.
        serves: Identifies the work that is served, as plain JSON.
        version: VERSION of the gpupipe that wrote the file.
    """

    history: str
    serves: dict[str, Any] = {}
    version: int = VERSION


class _Record(Struct, array_like=True, frozen=True):
    pass


class NextPass(_Record, tag="runs", frozen=True):
    """Number of the next pass."""

    number: int


class SessionStarted(_Record, tag="client", frozen=True):
    """A client has a session. The fields are those of messages.OpenSession, and its partition."""

    token: str
    partition: str
    name: str
    host_id: str
    pid: int
    process_started: str


class SessionEnded(_Record, tag="gone", frozen=True):
    """The session of a client has ended. Its leases were requeued before."""

    token: str


class PassStarted(_Record, tag="run", frozen=True):
    """A partition reads a new pass; epoch_pass.EpochPass explains the fields."""

    partition: str
    number: int
    epoch: int
    position: int
    steps: int


class PassDropped(_Record, tag="anew", frozen=True):
    """A partition starts over: passes before `first_pass` are forgotten."""

    partition: str
    first_pass: int


class StepLeased(_Record, tag="lease", frozen=True):
    """A client leases the batch of a step."""

    pass_number: int
    step: int
    token: str


class StepRequeued(_Record, tag="back", frozen=True):
    """A leased step is queued again."""

    pass_number: int
    step: int


class StepDone(_Record, tag="done", frozen=True):
    """A step was consumed, or had no sample that could be read."""

    pass_number: int
    step: int


class StepsDone(_Record, tag="all done", frozen=True):
    """All steps of a pass that were done when the file was compacted."""

    pass_number: int
    steps: list[int]


class ServerStopped(_Record, tag="stopped", frozen=True):
    """The server was stopped, and did not crash."""


StepRecord = StepLeased | StepRequeued | StepDone
Record = (
    NextPass
    | SessionStarted
    | SessionEnded
    | PassStarted
    | PassDropped
    | StepRecord
    | StepsDone
    | ServerStopped
)
_encoder = json.Encoder()
_head_decoder: json.Decoder[Head] = json.Decoder(Head)
_decoder: json.Decoder[Record] = json.Decoder(Record)


def encode(record: Head | Record) -> bytes:
    """Return the line of a record."""
    data = _encoder.encode(record)
    return b"%08x %s\n" % (zlib.crc32(data), data)


def append(file: int, record: Record) -> None:
    """Append a record to a file that is open to append.

    Raises:
        OSError: There is no room. The file is then as it was before.
    """
    line, size = encode(record), os.fstat(file).st_size
    try:
        while line:
            line = line[os.write(file, line) :]
    except OSError:
        os.ftruncate(file, size)
        raise


def read(path: Path) -> tuple[Head, list[Record]] | None:
    """Return the head and the records of a file, without a torn last one; None if it has no head.

    Raises:
        StateError: A record is damaged, or a newer gpupipe wrote the file.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return None
    if not lines:
        return None
    has_checksums = not lines[0].startswith(b"{")
    head: Head = _decode(_head_decoder, path, 1, lines[0], has_checksums)
    if head.version > VERSION:
        raise StateError(
            f"{path} is the state of a server of a newer gpupipe (version {head.version} of its "
            f"records, and this one reads up to {VERSION}): serve with that gpupipe, begin again "
            "with --fresh, or name another --state"
        )
    return head, [
        _decode(_decoder, path, number, line, has_checksums)
        for number, line in enumerate(lines[1:], 2)
    ]


def _decode(decoder: Any, path: Path, number: int, line: bytes, has_checksum: bool) -> Any:
    try:
        if has_checksum:
            checksum, _, line = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(line):
                raise ValueError("wrong checksum")
        return decoder.decode(line)
    except (MsgspecError, ValueError):
        raise StateError(
            f"{path}:{number}: the record of a server's state is damaged: begin again with "
            "--fresh, or name another --state"
        ) from None
