"""What records change, and that a snapshot leads to the same state."""

from pathlib import Path

from gpupipe.server.clients_and_passes import SessionStarted
from gpupipe.server.lease_state import (
    PassStarted,
    Record,
    ServerStopped,
    SessionEnded,
    StepDone,
    StepLeased,
    StepRequeued,
)
from gpupipe.server.sessions import Sessions
from gpupipe.server.write_ahead_log import WriteAheadLog
from helpers.lease_tables import OPTIONS, STEPS, joined, lease_all


def new_sessions(*records: Record) -> Sessions:
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    for record in records:
        sessions.state.apply(record)
    return sessions


SESSION = SessionStarted("1" * 32, "0", "client", "", 1, "")
STARTED = SESSION, PassStarted("0", 4, 2, 0, STEPS)


def test_a_step_is_leased_by_one_client_and_then_done_or_queued() -> None:
    state = new_sessions(*STARTED, *(StepLeased(4, step, SESSION.token) for step in range(3))).state
    state.apply(StepRequeued(4, 1))
    state.apply(StepDone(4, 0))
    current = state.find_pass(4)
    assert current is not None
    assert (current.leased, current.requeued, current.done) == ({2: SESSION.token}, [1], {0})
    assert state.clients[SESSION.token].leases == [(4, 2)]
    assert state.next_pass == 5


def test_what_is_forgotten_is_ignored() -> None:
    state = new_sessions(
        *STARTED, StepLeased(4, 0, "2" * 32), StepDone(3, 0), ServerStopped()
    ).state
    state.apply(SessionEnded("2" * 32))
    assert list(state.snapshot()) == list(new_sessions(*STARTED).state.snapshot())


def test_a_snapshot_leads_to_the_state() -> None:
    sessions = new_sessions()
    first, second = joined(sessions, 1), joined(sessions, 2)
    sessions.batches.acknowledge(first, [(0, step) for step in lease_all(sessions)[first][:2]])
    sessions.end(second)
    snapshot = list(sessions.state.snapshot())
    assert list(new_sessions(*snapshot).state.snapshot()) == snapshot


def test_a_state_file_of_the_version_before_is_continued(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_text(
        '4fe384a6 {"history": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "runs": 1, '
        '"serves": {"seed": 1, "x": null}}\n'
        'ad4504e8 ["runs", 1]\n'
        '5dc79c64 ["client", "00000000000000000000000000000001", "0", "client 00", "", 1, ""]\n'
        '1eb38517 ["run", "0", 0, 0, 0, 12]\n'
        '60747083 ["all done", 0, []]\n'
        'f3790612 ["lease", 0, 0, "00000000000000000000000000000001"]\n'
        '7ef1fbf0 ["lease", 0, 1, "00000000000000000000000000000001"]\n'
        'cf929b82 ["back", 0, 1]\n'
        '56fe7407 ["done", 0, 0]\n'
    )
    log = WriteAheadLog(file, {"seed": 1, "x": None})
    state = new_sessions().state
    assert log.resume(state, 0.0)
    log.close()
    assert log.history == "a" * 32
    current = state.find_pass(0)
    assert current is not None
    assert (current.done, current.leased, current.take()) == ({0}, {}, 1)
