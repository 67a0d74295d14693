"""Write-ahead log of a server: one record per change, written before any message about it.

After a crash, the next server resumes from the log. A server that is stopped writes ServerStopped
as the last record. The next server then resumes if the option `resume` is set, or if clients were
connected (rule 12 in batch_leases.py).

lease_state.py defines the records and applies them, in a running server and after a restart. Each
record is written without fsync before the server goes on: it survives the process, but not a power
failure. The file is compacted when it is opened and at the start of each pass: it then holds only
the current state.

A record is a line: a checksum, a blank, and JSON. The first line is the `Head`; every other line is
one `Record`. The last line may be torn, because the process was killed while it wrote: the reader
drops it, since no message about it was sent. Any other line with a wrong checksum is damage.

    0c9a6f11 {"history":"5d0e...","serves":{"seed":1},"version":1}
    5bd2ab3e ["client","8f14...","0","node1:4242","",4242,"99"]
    7c6d7f0a ["run","0",0,0,0,1200]
    93e8f2c4 ["lease",0,0,"8f14..."]
    1a2b3c4d ["done",0,0]
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from msgspec import MsgspecError, Struct, json

from gpupipe.errors import ServerError, StateError
from gpupipe.runtime.file_locks import try_lock
from gpupipe.runtime.files import write_atomically
from gpupipe.runtime.process import close_in_forks, keep_in_forks
from gpupipe.server.clients_and_passes import SessionStarted
from gpupipe.server.lease_state import LeaseState, PassStarted, Record, ServerStopped, SessionEnded

VERSION = 1
"""Version of the records. Increase it if an older gpupipe would misread the file."""


class Head(Struct, frozen=True):
    """The first record of a file.

    Attributes:
        history: A random token for the server's sequence of passes. A server that resumes keeps it.
        serves: Plain JSON that identifies the loader that is served. A server with another value
            does not resume from the file.
        version: VERSION of the gpupipe that wrote the file.
    """

    history: str
    serves: dict[str, Any] = {}
    version: int = VERSION


_encoder = json.Encoder()
_head_decoder: json.Decoder[Head] = json.Decoder(Head)
_decoder: json.Decoder[Record] = json.Decoder(Record)


class WriteAheadLog:
    """The state file of one server. The constructor locks it.

    Args:
        path: The file. The lock is a second file beside it, with the suffix ".lock".
        work: Identifies the work that is served, as plain JSON: data, pipeline, order, mode.

    Attributes:
        path: The file.
        history: Token of the server's sequence of passes: the token in the file if the server
            resumes, else a random one. Clients compare it to detect a server that started over.

    Raises:
        ServerError: Another server holds the lock, or the folder cannot be written.
    """

    def __init__(self, path: Path, work: dict[str, Any]) -> None:
        self.path, self._work = path, work
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            is_ours = try_lock(self._lock)
        if not is_ours:
            os.close(self._lock)
            raise ServerError(
                f"another server keeps its state in {path}: give each its own --state, or end the "
                "other"
            )
        close_in_forks(self._lock)
        self._file = -1
        self._state: LeaseState | None = None
        self.history = token_hex(16)

    def resume(self, state: LeaseState, now: float, after_stop: bool = False) -> bool:
        """Apply the records of the file to a new state, compact the file, and log from here on.

        Args:
            state: A new state, without clients.
            now: Seconds, of a monotonic clock.
            after_stop: Whether new clients may continue the work of a server that was stopped. If
                False, only its own clients may; see LeaseState.stopped_at. After a crash, new
                clients may always continue.

        Returns:
            True if the file held records, and new clients may continue from them.

        Raises:
            ServerError: The file cannot be written.
            StateError: The file belongs to a server of other work or of a newer gpupipe, or is
                damaged.
        """
        self._state = state
        records = self._read(after_stop)
        for record in records:
            state.apply(record)
        state.continue_after_restart(now, _was_stopped(records) and not after_stop)
        self._compact()
        return bool(records) and state.stopped_at is None

    def log(self, record: Record) -> None:
        """Append a record to the file, or compact the file if a pass starts.

        Raises ServerError if the file cannot be written.
        """
        if isinstance(record, PassStarted):
            self._compact()
        else:
            with _writing(self.path):
                _append(self._file, record)

    def stop(self) -> None:
        """Log that the server was stopped and did not crash. Raises ServerError as `log` does."""
        self.log(ServerStopped())

    def forget(self) -> None:
        """Delete the file, so that the server starts from the beginning.

        Raises ServerError if the file cannot be deleted.
        """
        with _writing(self.path):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and release the lock. Idempotent."""
        keep_in_forks(self._lock)
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _read(self, after_stop: bool) -> list[Record]:
        """Return the records to resume from, and set `history` to theirs; [] if there are none.

        Raises StateError if the file belongs to a server of other work, or is damaged.
        """
        file = read_log(self.path)
        if file is None:
            return []
        head, records = file
        is_same = head.serves == self._work
        if _was_stopped(records) and not after_stop and not (is_same and _has_clients(records)):
            return []
        if not is_same:
            raise StateError(
                f"{self.path} is the state of a server of something else "
                f"({_difference(head.serves, self._work)}): name another --state, or begin again "
                "with --fresh"
            )
        self.history = head.history
        return records

    def _compact(self) -> None:
        """Replace the file by the current state, and open it to append."""
        assert self._state is not None
        head = Head(self.history, self._work)
        data = b"".join(map(encode, [head, *self._state.snapshot()]))
        with _writing(self.path):
            with write_atomically(self.path) as new:
                new.touch(0o600)
                new.write_bytes(data)
            if self._file >= 0:
                os.close(self._file)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the `with` block into a ServerError that names `path`."""
    try:
        yield
    except OSError as e:
        raise ServerError(
            f"{path}: the state of the server cannot be kept ({e.strerror}): make room "
            "there, or name another file with --state"
        ) from e


def _was_stopped(records: list[Record]) -> bool:
    return records[-1:] == [ServerStopped()]


def _has_clients(records: list[Record]) -> bool:
    """Return whether any client's session is still open after all records."""
    is_open = {
        record.token: isinstance(record, SessionStarted)
        for record in records
        if isinstance(record, SessionStarted | SessionEnded)
    }
    return any(is_open.values())


def _difference(stored: dict[str, Any], serves: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}: {stored.get(key)} there, {serves.get(key)} here"
        for key in {**serves, **stored}
        if stored.get(key) != serves.get(key)
    )


def encode(record: Head | Record) -> bytes:
    """Encode a record as a line of the file: checksum, blank, JSON, newline."""
    data = _encoder.encode(record)
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _append(file: int, record: Record) -> None:
    """Append a record to a file. `file`: descriptor of a file that is open to append.

    Raises:
        OSError: The disk is full, for instance. The file is then as it was before.
    """
    line, size = encode(record), os.fstat(file).st_size
    try:
        while line:
            line = line[os.write(file, line) :]
    except OSError:
        os.ftruncate(file, size)
        raise


def read_log(path: Path) -> tuple[Head, list[Record]] | None:
    """Return the head and the records of a file. An incomplete last line is dropped.

    Returns None if there is no file, or no complete line in it.

    Raises:
        StateError: The file cannot be read, a record is damaged, or a newer gpupipe wrote the file.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    except OSError as e:
        raise StateError(f"{path}: the state of a server cannot be read: {e.strerror}") from e
    if not lines:
        return None
    head: Head = _decode(_head_decoder, path, 1, lines[0])
    if head.version > VERSION:
        raise StateError(
            f"{path} is the state of a server of a newer gpupipe (version {head.version} of its "
            f"records, and this one reads up to {VERSION}): serve with that gpupipe, begin again "
            "with --fresh, or name another --state"
        )
    return head, [_decode(_decoder, path, number, line) for number, line in enumerate(lines[1:], 2)]


def _decode(decoder: Any, path: Path, number: int, line: bytes) -> Any:
    checksum, _, data = line.partition(b" ")
    try:
        if checksum != b"%08x" % zlib.crc32(data):
            raise ValueError("wrong checksum")
        return decoder.decode(data)
    except (MsgspecError, ValueError):
        raise StateError(
            f"{path}:{number}: the record of a server's state is damaged: begin again with "
            "--fresh, or name another --state"
        ) from None
