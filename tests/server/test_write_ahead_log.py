"""What a restarted server knows of its leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpupipe.server.client_state import RequestRefused
from gpupipe.server.leases import Leases
from gpupipe.server.write_ahead_log import WriteAheadLog
from helpers.lease_tables import OPTIONS, STEPS, hello, joined, lease_all


def test_a_journal_of_something_else_or_of_another_server_is_refused(tmp_path: Path) -> None:
    import gpupipe

    file = tmp_path / "state"
    first = WriteAheadLog(file, {"seed": 1})
    with pytest.raises(gpupipe.ServerError, match="another server keeps its state"):
        WriteAheadLog(file, {"seed": 1})
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0), first.log)
    assert not first.resume(leases.state, "a" * 32, 0.0)
    token = joined(leases, 1)
    lease_all(leases)
    leases.batches.acknowledge(token, [(0, 0)])
    first.close()
    with file.open("a") as f:
        f.write('["done", 0, 1')  # a line that was cut off
    other = WriteAheadLog(file, {"seed": 2})
    with pytest.raises(gpupipe.StateError, match="seed: 1 there, 2 here"):
        other.resume(leases.state, "b" * 32, 0.0)
    other.close()
    again = WriteAheadLog(file, {"seed": 1})
    resumed = Leases(OPTIONS, lambda *place: STEPS, (0, 0), again.log)
    assert again.resume(resumed.state, "c" * 32, 0.0)
    assert again.history == "a" * 32
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
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0), first.log)
    first.resume(leases.state, "a" * 32, 0.0)
    gone = joined(leases, 1)
    assert lease_all(leases) == {gone: [0, 1, 2, 3, 4]}
    silent = joined(leases, 2)
    leases.sessions.end(gone)
    assert lease_all(leases) == {silent: [0, 1, 2, 3, 4]}
    leases.sessions.apply_timeouts(11.0, lambda hello: False)
    first.close()
    again = WriteAheadLog(tmp_path / "state", {})
    resumed = Leases(OPTIONS, lambda *place: STEPS, (0, 0), again.log)
    again.resume(resumed.state, "b" * 32, 12.0)
    again.close()
    run = resumed.state.partitions["0"].current
    assert run is not None
    assert run.leased == {0: silent, 1: silent, 2: silent}
    assert run.requeued == list(range(3, STEPS))
    assert list(resumed.state.clients) == [silent]


def stopped(path: Path, work: dict[str, int], clients: int) -> None:
    """Write the log of a server that was stopped, whose clients are in the middle of a pass."""
    log = WriteAheadLog(path, work)
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0), log.log)
    log.resume(leases.state, "a" * 32, 0.0)
    for number in range(1, 3):
        token = joined(leases, number)
        lease_all(leases)
        leases.batches.acknowledge(token, [leases.state.clients[token].leases[0]])
    for number in range(clients + 1, 3):
        leases.sessions.end(f"{number:032x}")
    log.stop()
    log.close()


@contextmanager
def restarted(
    path: Path, work: dict[str, int], after_stop: bool = False
) -> Iterator[tuple[Leases, bool]]:
    """The leases of the next server, and whether it has resumed."""
    log = WriteAheadLog(path, work)
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0), log.log)
    yield leases, log.resume(leases.state, "b" * 32, 100.0, after_stop)
    log.close()


def test_the_clients_of_a_stopped_server_alone_go_on(tmp_path: Path) -> None:
    stopped(tmp_path / "state", {}, clients=2)
    with restarted(tmp_path / "state", {}) as (leases, has_resumed):
        assert (has_resumed, leases.state.stopped_at) == (False, 100.0)
        first = leases.state.clients[f"{1:032x}"]
        leases.sessions.settle_stopped_run(True, 100.5)
        assert leases.state.stopped_at is None
        request = hello(first.token, held=list(first.leases))
        assert leases.sessions.open(request, 100.5, is_known=True).leases == first.leases
        assert first.hwm == request.hwm


def test_a_new_client_waits_and_then_ends_the_run_of_a_stopped_server(tmp_path: Path) -> None:
    stopped(tmp_path / "state", {}, clients=2)
    with restarted(tmp_path / "state", {}) as (leases, _):
        with pytest.raises(RequestRefused, match="waits 5 s for the clients of the last") as caught:
            leases.sessions.settle_stopped_run(False, 104.9)
        assert caught.value.is_temporary
        leases.sessions.settle_stopped_run(False, 105.1)
        assert not leases.state.clients
        leases.sessions.open(hello("3" * 32), 105.1)
        assert leases.state.partitions["0"].current is None, "it begins with the first epoch"


@pytest.mark.parametrize(("clients", "work"), [(0, {}), (2, {"seed": 2})], ids=["gone", "other"])
def test_a_stopped_server_leaves_nothing_to_others(
    tmp_path: Path, clients: int, work: dict[str, int]
) -> None:
    stopped(tmp_path / "state", {}, clients)
    with restarted(tmp_path / "state", work) as (leases, has_resumed):
        assert (has_resumed, leases.state.stopped_at, leases.state.clients) == (False, None, {})


def test_a_server_that_is_asked_to_resume_waits_for_nobody(tmp_path: Path) -> None:
    stopped(tmp_path / "state", {}, clients=2)
    with restarted(tmp_path / "state", {}, after_stop=True) as (leases, has_resumed):
        assert (has_resumed, leases.state.stopped_at, len(leases.state.clients)) == (True, None, 2)
