"""What a server must still know when it is killed and started again: one JSON line an event,
written before what it tells of happens.

A server that is stopped says so in its last line. The next one then begins anew, unless it is asked
to go on.

A line goes to the kernel in one write, so that it outlives the process, though not a power failure.
The file is written anew when a run begins and when it is opened: then it holds only what counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpupipe.errors import ServerError, StateError
from gpupipe.protocol import messages
from gpupipe.server.client_state import Client
from gpupipe.server.epoch_pass import EpochPass, Partition
from gpupipe.server.leases import Leases

_STOPPED = "stopped"
_LOCKED = "another server keeps its state in {}: give each its own --state, or end the other"


class WriteAheadLog:
    """The file at `path`, for a server that serves `what` (plain JSON: data, pipeline, order,
    mode).

    Raises ServerError where another server has it, or where it cannot be written; StateError where
    it is the state of something else.
    """

    def __init__(self, path: Path, what: dict[str, Any]) -> None:
        self.path, self._what = path, what
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(
                path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ServerError(_LOCKED.format(path)) from None
        self._file = -1
        self._ledger: Leases | None = None
        self.history = ""

    def resume(self, ledger: Leases, history: str, now: float, after_stop: bool = False) -> bool:
        """Bring a new ledger to where the file says, and note down from here on. Returns whether
        there was anything to go on from.

        Args:
            ledger: A new one.
            history: The name of a history that begins here, where the file's is not gone on with.
            now: Seconds, of the ledger's clock.
            after_stop: Go on also from a server that was stopped; else only from one that crashed.

        Raises:
            StateError: The file is the state of a server of something else.

        """
        self._ledger, self.history = ledger, history
        events = self._events(after_stop)
        for event in events:
            _replay(ledger, event, now)
        after_restart(ledger)
        self._rewrite()
        return bool(events)

    def note(self, *event: Any) -> None:
        """Note down an event. Raises ServerError."""
        if event[0] == "run":
            self._rewrite()
        else:
            with _writing(self.path):
                os.write(self._file, json.dumps(event).encode() + b"\n")

    def stop(self) -> None:
        """Note down that the server was stopped, so that its run ends with it.

        Raises ServerError.
        """
        self.note(_STOPPED)

    def forget(self) -> None:
        """Remove what is there, so that a server begins anew. Raises ServerError."""
        with _writing(self.path):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _events(self, after_stop: bool) -> list[list[Any]]:
        """What the file holds; a last line that was cut off does not count. Raises StateError."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        if not lines:
            return []
        head = _parsed(lines[0])
        events = [event for event in map(_parsed, lines[1:]) if isinstance(event, list)]
        if (
            isinstance(head, dict)
            and "serves" in head
            and events[-1:] == [[_STOPPED]]
            and not after_stop
        ):
            return []
        if not isinstance(head, dict) or head.get("serves") != self._what:
            raise StateError(
                f"{self.path} is the state of a server of something else "
                f"({_difference(head, self._what)}): name another --state, or begin anew "
                "with --fresh"
            )
        self.history = head["history"]
        return [event for event in events if event != [_STOPPED]]

    def _rewrite(self) -> None:
        """Replace the file by what counts now, and open it to go on."""
        assert self._ledger is not None
        head = {"history": self.history, "runs": self._ledger.runs, "serves": self._what}
        text = "".join(json.dumps(line) + "\n" for line in [head, *_state(self._ledger)])
        new = self.path.with_name(self.path.name + ".new")
        with _writing(self.path):
            new.write_text(text, encoding="utf-8")
            new.chmod(0o600)
            new.replace(self.path)
            if self._file >= 0:
                os.close(self._file)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raises ServerError for an OSError inside."""
    try:
        yield
    except OSError as e:
        raise ServerError(
            f"{path}: the state of the server cannot be kept ({e.strerror}): make room "
            "there, or name another file with --state"
        ) from e


def after_restart(ledger: Leases) -> None:
    """What is neither out nor done is to be made; who has something is expected to say that it goes
    on.
    """
    for lane in ledger.lanes.values():
        if lane.run is not None:
            lane.run.resume()
    for client in ledger.clients.values():
        client.pending = bool(client.leases)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _difference(head: Any, what: dict[str, Any]) -> str:
    found = head.get("serves") if isinstance(head, dict) else None
    if not isinstance(found, dict):
        return "it cannot be read"
    return ", ".join(
        f"{key}: {found.get(key)} there, {value} here"
        for key, value in what.items()
        if found.get(key) != value
    )


def _state(ledger: Leases) -> Iterator[list[Any]]:
    """The events that lead to where a ledger is."""
    yield ["runs", ledger.runs]
    for client in ledger.clients.values():
        hello = client.hello
        yield [
            "client",
            client.token,
            client.lane.name,
            hello.name,
            hello.place,
            hello.pid,
            hello.started,
        ]
    for lane in ledger.lanes.values():
        run = lane.run
        if lane.anew:
            yield ["anew", lane.name, lane.anew]
        if run is not None:
            yield ["run", lane.name, run.number, run.epoch, run.position, run.steps]
            yield ["all done", run.number, sorted(run.done)]
            yield from (["lease", run.number, step, token] for step, token in run.out.items())


def _replay(ledger: Leases, event: list[Any], now: float) -> None:
    kind, *rest = event
    if kind == "runs":
        ledger.runs = rest[0]
    elif kind == "client":
        _replay_client(ledger, rest, now)
    elif kind == "gone":
        gone = ledger.clients.pop(rest[0], None)
        if gone is not None and ledger.rules.mode == "broadcast":
            ledger.lanes.pop(gone.lane.name, None)
    elif kind == "anew":
        ledger.lanes[rest[0]].run, ledger.lanes[rest[0]].anew = None, rest[1]
    elif kind == "run":
        name, number, epoch, position, steps = rest
        ledger.lanes[name].run = EpochPass(number, epoch, position, steps)
        ledger.runs = max(ledger.runs, number + 1)
    else:
        _replay_step(ledger, kind, rest)


def _replay_client(ledger: Leases, rest: list[Any], now: float) -> None:
    token, name, called, place, pid, started = rest
    hello = messages.Hello(
        messages.VERSION,
        token,
        0,
        called,
        0,
        1,
        ledger.rules.hwm,
        place,
        pid,
        started,
        False,
        [],
        [],
        [],
    )
    lane = ledger.lanes.setdefault(name, Partition(name, 0))
    ledger.clients[token] = Client(token, hello, lane, ledger.rules.hwm, now)


def _replay_step(ledger: Leases, kind: str, rest: list[Any]) -> None:
    run = next(
        (
            lane.run
            for lane in ledger.lanes.values()
            if lane.run is not None and lane.run.number == rest[0]
        ),
        None,
    )
    if run is None:
        return
    for client in ledger.clients.values():
        client.leases = [key for key in client.leases if key != (rest[0], rest[1])]
    if kind == "all done":
        run.done.update(rest[1])
    elif kind == "done":
        run.out.pop(rest[1], None)
        run.done.add(rest[1])
    elif kind == "back":
        run.out.pop(rest[1], None)
    elif rest[2] in ledger.clients:
        run.out[rest[1]] = rest[2]
        ledger.clients[rest[2]].leases.append((rest[0], rest[1]))
