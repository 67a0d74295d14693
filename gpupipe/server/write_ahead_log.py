"""Write-ahead log of a server: one record per change, written before any message about it.

A server that was killed resumes from it. A server that is stopped writes that as the last line. The
next server then resumes if it is asked to, or if clients were connected (rule 12 of leases.py).

log_records.py has the records, and lease_state.py makes the change that each names, in a running
server and here. A record is in the kernel before the server goes on: it survives the process, but
not a power failure. The file is compacted when it is opened and at the start of each pass: it then
holds only the current state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpupipe.errors import ServerError, StateError
from gpupipe.runtime.files import try_lock, write_atomically
from gpupipe.runtime.forked_children import close_in_forks, keep_in_forks
from gpupipe.server import log_records
from gpupipe.server.lease_state import LeaseState
from gpupipe.server.log_records import Record

_LOCKED = "another server keeps its state in {}: give each its own --state, or end the other"


class WriteAheadLog:
    """The state file of one server. The constructor locks it.

    Args:
        path: The file. The lock is a second file beside it, with the suffix ".lock".
        work: Identifies the work that is served, as plain JSON: data, pipeline, order, mode.

    Attributes:
        path: The file.
        history: Names the sequence of passes; clients compare it to detect a server that started
            over.

    Raises:
        ServerError: Another server holds the lock, or the folder cannot be written.
    """

    def __init__(self, path: Path, work: dict[str, Any]) -> None:
        self.path, self._work = path, work
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(
                path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            is_ours = try_lock(self._lock)
        if not is_ours:
            os.close(self._lock)
            raise ServerError(_LOCKED.format(path))
        close_in_forks(self._lock)
        self._file = -1
        self._state: LeaseState | None = None
        self.history = ""

    def resume(self, state: LeaseState, history: str, now: float, after_stop: bool = False) -> bool:
        """Apply the records of the file to a new state, compact it, and log from here on.

        Args:
            state: A new state, without clients.
            history: Name of the history if a new one begins, because there is nothing to resume.
            now: Seconds, of a monotonic clock.
            after_stop: Resume also from a server that was stopped, not only from one that crashed.
                Without it, such a server's clients alone may go on; see `state.stopped_at`.

        Returns:
            True if the file held records to resume from, for new clients too.

        Raises:
            ServerError: The file cannot be written.
            StateError: The file belongs to a server of other work or of a newer gpupipe, or is
                damaged.
        """
        self._state, self.history = state, history
        records = self._read(after_stop)
        was_stopped = records[-1:] == [log_records.ServerStopped()]
        for record in records:
            state.apply(record)
        state.continue_after_restart(now, was_stopped and not after_stop)
        self._compact()
        return bool(records) and state.stopped_at is None

    def log(self, record: Record) -> None:
        """Log a record; the start of a pass compacts the file instead. Raises ServerError."""
        if isinstance(record, log_records.PassStarted):
            self._compact()
        else:
            with _writing(self.path):
                log_records.append(self._file, record)

    def stop(self) -> None:
        """Log that the server was stopped, so that the next one does not resume its pass.

        Raises ServerError.
        """
        self.log(log_records.ServerStopped())

    def forget(self) -> None:
        """Delete the file, so that the server starts from the beginning. Raises ServerError."""
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
        """Return the records to resume from, and take over their history. Raises StateError."""
        file = log_records.read(self.path)
        if file is None:
            return []
        head, records = file
        is_same = head.serves == self._work
        was_stopped = records[-1:] == [log_records.ServerStopped()]
        if was_stopped and not after_stop and not (is_same and _has_clients(records)):
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
        head = log_records.Head(self.history, self._work)
        data = b"".join(map(log_records.encode, [head, *self._state.snapshot()]))
        with _writing(self.path):
            with write_atomically(self.path) as new:
                new.touch(0o600)
                new.write_bytes(data)
            if self._file >= 0:
                os.close(self._file)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise ServerError for an OSError inside the `with` block."""
    try:
        yield
    except OSError as e:
        raise ServerError(
            f"{path}: the state of the server cannot be kept ({e.strerror}): make room "
            "there, or name another file with --state"
        ) from e


def _has_clients(records: list[Record]) -> bool:
    """Return whether any client's session was open at the end."""
    is_open = {
        record.token: isinstance(record, log_records.SessionStarted)
        for record in records
        if isinstance(record, log_records.SessionStarted | log_records.SessionEnded)
    }
    return any(is_open.values())


def _difference(stored: dict[str, Any], serves: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}: {stored.get(key)} there, {serves.get(key)} here"
        for key in {**serves, **stored}
        if stored.get(key) != serves.get(key)
    )
