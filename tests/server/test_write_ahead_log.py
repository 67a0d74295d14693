"""What a restarted server knows of its leases; a state file that is full, torn, or damaged."""

import resource
import signal
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpupipe.errors import ServerError, StateError
from gpupipe.server.lease_state import NextPass, PassStarted, Record, StepDone, StepLeased
from gpupipe.server.options import ServerOptions
from gpupipe.server.pass_schedule import RequestRefused
from gpupipe.server.sessions import Sessions
from gpupipe.server.write_ahead_log import VERSION, Head, WriteAheadLog, encode, read_log
from helpers.lease_tables import OPTIONS, STEPS, hello, joined, lease_all


def test_a_journal_of_something_else_or_of_another_server_is_refused(tmp_path: Path) -> None:
    import gpupipe

    file = tmp_path / "state"
    first = WriteAheadLog(file, {"seed": 1})
    with pytest.raises(gpupipe.ServerError, match="another server keeps its state"):
        WriteAheadLog(file, {"seed": 1})
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0), first.log)
    assert not first.resume(sessions.state, 0.0)
    token = joined(sessions, 1)
    lease_all(sessions)
    sessions.batches.acknowledge(token, [(0, 0)])
    first.close()
    with file.open("a") as f:
        f.write('["done", 0, 1')  # a line that was cut off
    other = WriteAheadLog(file, {"seed": 2})
    with pytest.raises(gpupipe.StateError, match="seed: 1 there, 2 here"):
        other.resume(sessions.state, 0.0)
    other.close()
    again = WriteAheadLog(file, {"seed": 1})
    resumed = Sessions(OPTIONS, lambda *place: STEPS, (0, 0), again.log)
    assert again.resume(resumed.state, 0.0)
    assert again.history == first.history
    run = resumed.state.partitions["0"].current
    assert run is not None
    assert (run.done, sorted(run.leased), run.requeued) == (
        {0},
        [1, 2, 3, 4],
        list(range(5, STEPS)),
    )
    again.close()


def test_what_came_back_before_a_restart_is_made_again_behind_it(tmp_path: Path) -> None:
    """From a client that is gone, and from one that was silent."""
    first = WriteAheadLog(tmp_path / "state", {})
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0), first.log)
    first.resume(sessions.state, 0.0)
    gone = joined(sessions, 1)
    assert lease_all(sessions) == {gone: [0, 1, 2, 3, 4]}
    silent = joined(sessions, 2)
    sessions.end(gone)
    assert lease_all(sessions) == {silent: [0, 1, 2, 3, 4]}
    sessions.apply_timeouts(11.0, lambda hello: False)
    first.close()
    again = WriteAheadLog(tmp_path / "state", {})
    resumed = Sessions(OPTIONS, lambda *place: STEPS, (0, 0), again.log)
    again.resume(resumed.state, 12.0)
    again.close()
    run = resumed.state.partitions["0"].current
    assert run is not None
    assert run.leased == {0: silent, 1: silent, 2: silent}
    assert run.requeued == list(range(3, STEPS))
    assert list(resumed.state.clients) == [silent]


def stopped(path: Path, work: dict[str, int], clients: int) -> None:
    """Write the log of a server that was stopped, whose clients are in the middle of a pass."""
    log = WriteAheadLog(path, work)
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0), log.log)
    log.resume(sessions.state, 0.0)
    for number in range(1, 3):
        token = joined(sessions, number)
        lease_all(sessions)
        sessions.batches.acknowledge(token, [sessions.state.clients[token].leases[0]])
    for number in range(clients + 1, 3):
        sessions.end(f"{number:032x}")
    log.stop()
    log.close()


@contextmanager
def restarted(
    path: Path, work: dict[str, int], after_stop: bool = False
) -> Iterator[tuple[Sessions, bool]]:
    """The leases of the next server, and whether it has resumed."""
    log = WriteAheadLog(path, work)
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0), log.log)
    yield sessions, log.resume(sessions.state, 100.0, after_stop)
    log.close()


def test_the_clients_of_a_stopped_server_alone_go_on(tmp_path: Path) -> None:
    stopped(tmp_path / "state", {}, clients=2)
    with restarted(tmp_path / "state", {}) as (sessions, has_resumed):
        assert (has_resumed, sessions.state.stopped_at) == (False, 100.0)
        first = sessions.state.clients[f"{1:032x}"]
        sessions.settle_stopped_run(True, 100.5)
        assert sessions.state.stopped_at is None
        request = hello(first.token, held=list(first.leases))
        assert sessions.open(request, 100.5, is_known=True).leases == first.leases
        assert first.hwm == request.hwm


def test_a_new_client_waits_and_then_ends_the_run_of_a_stopped_server(tmp_path: Path) -> None:
    stopped(tmp_path / "state", {}, clients=2)
    with restarted(tmp_path / "state", {}) as (sessions, _):
        with pytest.raises(RequestRefused, match="waits 5 s for the clients of the last") as caught:
            sessions.settle_stopped_run(False, 104.9)
        assert caught.value.is_temporary
        sessions.settle_stopped_run(False, 105.1)
        assert not sessions.state.clients
        sessions.open(hello("3" * 32), 105.1)
        assert sessions.state.partitions["0"].current is None, "it begins with the first epoch"


@pytest.mark.parametrize(("clients", "work"), [(0, {}), (2, {"seed": 2})], ids=["gone", "other"])
def test_a_stopped_server_leaves_nothing_to_others(
    tmp_path: Path, clients: int, work: dict[str, int]
) -> None:
    stopped(tmp_path / "state", {}, clients)
    with restarted(tmp_path / "state", work) as (sessions, has_resumed):
        assert (has_resumed, sessions.state.stopped_at, sessions.state.clients) == (False, None, {})


def test_a_server_that_is_asked_to_resume_waits_for_nobody(tmp_path: Path) -> None:
    stopped(tmp_path / "state", {}, clients=2)
    with restarted(tmp_path / "state", {}, after_stop=True) as (sessions, has_resumed):
        assert (has_resumed, sessions.state.stopped_at, len(sessions.state.clients)) == (
            True,
            None,
            2,
        )


MANY_STEPS = 5000
LIMIT = 32 << 10


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 32 KiB in a folder."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={LIMIT}", "gpupipe-test", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process may be larger than 32 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def fill(state: Path) -> list[Record]:
    """Log records until there is no room, and return those that were logged."""
    log = WriteAheadLog(state, {})
    sessions = Sessions(ServerOptions(), lambda *place: MANY_STEPS, (0, 0), log.log)
    log.resume(sessions.state, 0.0)
    log.log(PassStarted("0", 0, 0, 0, MANY_STEPS))
    logged: list[Record] = []
    with pytest.raises(ServerError, match=r"cannot be kept .*make room"):
        for step in range(MANY_STEPS):
            log.log(StepDone(0, step))
            logged.append(StepDone(0, step))
    log.close()
    return logged


def read(state: Path) -> list[Record]:
    log = read_log(state)
    assert log is not None
    return log[1]


def test_a_full_disk_loses_no_event_that_was_logged(tmp_path: Path) -> None:
    """Also not the one before the error, of which only a part has room."""
    with small_disk(tmp_path):
        logged = fill(tmp_path / "state")
        assert read(tmp_path / "state") == [NextPass(0), *logged]
        assert (tmp_path / "state").read_bytes().endswith(b"\n"), "no part of a record is left"


def test_a_limit_of_the_file_size_loses_no_event_that_was_logged(tmp_path: Path) -> None:
    with small_files():
        logged = fill(tmp_path / "state")
    assert len(logged) > 500
    assert read(tmp_path / "state") == [NextPass(0), *logged]


HEAD = Head("a")
RECORDS = [StepLeased(0, 1, "b"), StepDone(0, 1)]


def write(path: Path) -> bytes:
    data = b"".join(encode(record) for record in [HEAD, *RECORDS])
    path.write_bytes(data)
    return data


def test_a_torn_last_record_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    file = tmp_path / "state"
    data = write(file)
    last = len(encode(RECORDS[-1]))
    for size in range(len(data) - last, len(data)):
        file.write_bytes(data[:size])
        assert read_log(file) == (HEAD, RECORDS[:-1])


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize(
    ("before", "after"), [(b'"', b"'"), (b'"', b'"x')], ids=["no JSON", "other JSON"]
)
def test_a_damaged_record_is_refused_with_its_line(
    tmp_path: Path, line: int, before: bytes, after: bytes
) -> None:
    file = tmp_path / "state"
    lines = write(file).splitlines(keepends=True)
    lines[line] = lines[line].replace(before, after, 1)
    file.write_bytes(b"".join(lines))
    with pytest.raises(StateError, match=rf"state:{line + 1}: .*damaged.*--fresh"):
        read_log(file)


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert read_log(tmp_path / "state") is None
    (tmp_path / "state").write_bytes(b"")
    assert read_log(tmp_path / "state") is None


def test_a_file_that_cannot_be_read_is_no_missing_one(tmp_path: Path) -> None:
    """Nothing else says that the server has no state: it would begin again, and write over it."""
    with pytest.raises(
        StateError, match=f"{tmp_path}: the state .* cannot be read: Is a directory"
    ):
        read_log(tmp_path)


def test_a_file_of_a_newer_version_is_refused_whatever_its_records_are(tmp_path: Path) -> None:
    file = tmp_path / "state"
    head = encode(Head("a", version=VERSION + 1))
    file.write_bytes(head + b"records of another form\n")
    with pytest.raises(StateError, match=r"state is .*newer gpupipe .*--fresh"):
        read_log(file)


def test_a_record_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state"
    moved = b'["moved",0,1]'
    file.write_bytes(encode(HEAD) + b"%08x %s\n" % (zlib.crc32(moved), moved))
    with pytest.raises(StateError, match=r"state:2: .*damaged"):
        read_log(file)
