"""What a restarted server knows of its leases."""

from __future__ import annotations

from pathlib import Path

import pytest
from lease_tables import RULES, STEPS, joined, lease_all

from gpupipe.server.leases import Leases
from gpupipe.server.write_ahead_log import WriteAheadLog


def test_a_journal_of_something_else_or_of_another_server_is_refused(tmp_path: Path) -> None:
    import gpupipe

    file = tmp_path / "state"
    first = WriteAheadLog(file, {"seed": 1})
    with pytest.raises(gpupipe.ServerError, match="another server keeps its state"):
        WriteAheadLog(file, {"seed": 1})
    leases = Leases(RULES, lambda *place: STEPS, (0, 0), first.log)
    assert not first.resume(leases, "a" * 32, 0.0)
    token = joined(leases, 1)
    lease_all(leases)
    leases.acknowledge(token, [(0, 0)])
    first.close()
    with file.open("a") as f:
        f.write('["done", 0, 1')  # a line that was cut off
    other = WriteAheadLog(file, {"seed": 2})
    with pytest.raises(gpupipe.StateError, match="seed: 1 there, 2 here"):
        other.resume(leases, "b" * 32, 0.0)
    other.close()
    again = WriteAheadLog(file, {"seed": 1})
    resumed = Leases(RULES, lambda *place: STEPS, (0, 0), again.log)
    assert again.resume(resumed, "c" * 32, 0.0)
    assert again.history == "a" * 32
    run = resumed.partitions["0"].current
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
    leases = Leases(RULES, lambda *place: STEPS, (0, 0), first.log)
    first.resume(leases, "a" * 32, 0.0)
    gone = joined(leases, 1)
    assert lease_all(leases) == {gone: [0, 1, 2, 3, 4]}
    silent = joined(leases, 2)
    leases.end_session(gone)
    assert lease_all(leases) == {silent: [0, 1, 2, 3, 4]}
    leases.apply_timeouts(11.0, lambda hello: False)
    first.close()
    again = WriteAheadLog(tmp_path / "state", {})
    resumed = Leases(RULES, lambda *place: STEPS, (0, 0), again.log)
    again.resume(resumed, "b" * 32, 12.0)
    again.close()
    run = resumed.partitions["0"].current
    assert run is not None
    assert run.leased == {0: silent, 1: silent, 2: silent}
    assert run.requeued == list(range(3, STEPS))
    assert list(resumed.clients) == [silent]
