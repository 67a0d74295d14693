"""Write-ahead log of a server: one record per event, written before any message about it.

A server that was killed resumes from it. A server that is stopped writes that as the last line. The
next server then resumes if it is asked to, or if clients were connected (rule 12 of leases.py).

Events are lists: ["client", token, ...], ["gone", token], ["run", partition, pass, ...] for a new
pass, ["lease", pass, step, token], ["done", pass, step], ["back", pass, step] for a requeued step,
["anew", partition, pass] for a partition that started over, and ["stopped"].

A record (log_records.py) is in the kernel before the server goes on: it survives the process, but
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
from gpupipe.protocol import messages
from gpupipe.runtime.atomic_write import write_atomically
from gpupipe.runtime.file_lock import try_lock
from gpupipe.runtime.forked_children import close_in_forks, keep_in_forks
from gpupipe.server import log_records
from gpupipe.server.client_state import Client, Idle, Reconnecting
from gpupipe.server.epoch_pass import EpochPass, Partition
from gpupipe.server.leases import Leases

_STOPPED = "stopped"
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
        self._leases: Leases | None = None
        self.history = ""

    def resume(self, leases: Leases, history: str, now: float, after_stop: bool = False) -> bool:
        """Replay the file into new leases, compact it, and log from here on.

        Args:
            leases: New leases, without clients.
            history: Name of the history if a new one begins, because there is nothing to resume.
            now: Seconds, of the leases' clock.
            after_stop: Resume also from a server that was stopped, not only from one that crashed.
                Without it, such a server's clients alone may go on; see `leases.stopped_at`.

        Returns:
            True if the file held events to resume from, for new clients too.

        Raises:
            ServerError: The file cannot be written.
            StateError: The file belongs to a server of other work, or is damaged.
        """
        self._leases, self.history = leases, history
        events, was_stopped = self._events(after_stop)
        for event in events:
            _replay(leases, event, now)
        after_restart(leases)
        leases.stopped_at = now if was_stopped and not after_stop else None
        self._compact()
        return bool(events) and leases.stopped_at is None

    def log(self, *event: Any) -> None:
        """Log an event; the start of a pass compacts the file instead. Raises ServerError."""
        if event[0] == "run":
            self._compact()
        else:
            with _writing(self.path):
                log_records.append(self._file, event)

    def stop(self) -> None:
        """Log that the server was stopped, so that the next one does not resume its pass.

        Raises ServerError.
        """
        self.log(_STOPPED)

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

    def _events(self, after_stop: bool) -> tuple[list[list[Any]], bool]:
        """Return the events to resume from, and whether the server was stopped.

        Raises StateError.
        """
        head, *events = log_records.read(self.path) or [None]
        if head is None:
            return [], False
        was_stopped = events[-1:] == [[_STOPPED]]
        is_same = isinstance(head, dict) and head.get("serves") == self._work
        if was_stopped and not after_stop and not (is_same and _has_clients(events)):
            return [], False
        if not is_same:
            raise StateError(
                f"{self.path} is the state of a server of something else "
                f"({_difference(head, self._work)}): name another --state, or begin again "
                "with --fresh"
            )
        self.history = head["history"]
        return [event for event in events if event != [_STOPPED]], was_stopped

    def _compact(self) -> None:
        """Replace the file by the current state, and open it to append."""
        assert self._leases is not None
        head = {"history": self.history, "runs": self._leases.next_pass, "serves": self._work}
        data = b"".join(map(log_records.encode, [head, *_state(self._leases)]))
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


def after_restart(leases: Leases) -> None:
    """Requeue all steps that are neither leased nor done.

    Clients that hold leases are marked as pending: the server waits until they say that they
    continue, or until their sessions end.
    """
    for partition in leases.partitions.values():
        if partition.current is not None:
            partition.current.requeue_unfinished()
    for client in leases.clients.values():
        client.phase = Reconnecting() if client.leases else Idle()


def _has_clients(events: list[list[Any]]) -> bool:
    """Return whether any client's session was open at the end."""
    is_open = {event[1]: event[0] == "client" for event in events if event[0] in ("client", "gone")}
    return any(is_open.values())


def _difference(head: Any, serves: dict[str, Any]) -> str:
    stored = head.get("serves") if isinstance(head, dict) else None
    if not isinstance(stored, dict):
        return "it cannot be read"
    return ", ".join(
        f"{key}: {stored.get(key)} there, {serves.get(key)} here"
        for key in {**serves, **stored}
        if stored.get(key) != serves.get(key)
    )


def _state(leases: Leases) -> Iterator[list[Any]]:
    """Yield events whose replay leads to the current state of the leases."""
    yield ["runs", leases.next_pass]
    for client in leases.clients.values():
        request = client.request
        yield [
            "client",
            client.token,
            client.partition.name,
            request.name,
            request.host_id,
            request.pid,
            request.process_started,
        ]
    for partition in leases.partitions.values():
        epoch_pass = partition.current
        if partition.first_pass:
            yield ["anew", partition.name, partition.first_pass]
        if epoch_pass is not None:
            yield [
                "run",
                partition.name,
                epoch_pass.number,
                epoch_pass.epoch,
                epoch_pass.position,
                epoch_pass.steps,
            ]
            yield ["all done", epoch_pass.number, sorted(epoch_pass.done)]
            yield from (
                ["lease", epoch_pass.number, step, token]
                for step, token in epoch_pass.leased.items()
            )


def _replay(leases: Leases, event: list[Any], now: float) -> None:
    kind, *rest = event
    if kind == "runs":
        leases.next_pass = rest[0]
    elif kind == "client":
        _replay_client(leases, rest, now)
    elif kind == "gone":
        client = leases.clients.pop(rest[0], None)
        if client is not None and leases.rules.mode == "broadcast":
            leases.partitions.pop(client.partition.name, None)
    elif kind == "anew":
        leases.partitions[rest[0]].current, leases.partitions[rest[0]].first_pass = None, rest[1]
    elif kind == "run":
        name, number, epoch, position, steps = rest
        leases.partitions[name].current = EpochPass(number, epoch, position, steps)
        leases.next_pass = max(leases.next_pass, number + 1)
    else:
        _replay_step(leases, kind, rest)


def _replay_client(leases: Leases, rest: list[Any], now: float) -> None:
    token, partition_name, client_name, place, pid, started = rest
    request = messages.OpenSession(
        messages.VERSION,
        token,
        0,
        client_name,
        0,
        1,
        leases.rules.hwm,
        place,
        pid,
        started,
        False,
        [],
        [],
        [],
    )
    partition = leases.partitions.setdefault(partition_name, Partition(partition_name, 0))
    leases.clients[token] = Client(token, request, partition, leases.rules.hwm, now)


def _replay_step(leases: Leases, kind: str, rest: list[Any]) -> None:
    epoch_pass = next(
        (
            partition.current
            for partition in leases.partitions.values()
            if partition.current is not None and partition.current.number == rest[0]
        ),
        None,
    )
    if epoch_pass is None:
        return
    for client in leases.clients.values():
        client.leases = [key for key in client.leases if key != (rest[0], rest[1])]
    if kind == "all done":
        epoch_pass.done.update(rest[1])
    elif kind == "done":
        epoch_pass.leased.pop(rest[1], None)
        epoch_pass.done.add(rest[1])
    elif kind == "back":
        epoch_pass.leased.pop(rest[1], None)
    elif rest[2] in leases.clients:
        epoch_pass.leased[rest[1]] = rest[2]
        leases.clients[rest[2]].leases.append((rest[0], rest[1]))
