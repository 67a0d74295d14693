"""Which worker died of what, the likely cause, and what is left of it; in workers of torch:
test_crashing_samples.py.
"""

import os
import signal
import threading
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

from gpupipe.engines.dataloader.worker_death import (
    DeadWorker,
    explain_failure,
    find_dead_workers,
    remove_shared_memory,
    without_child_signals,
)


def test_dead_workers_are_found_by_their_exit_codes() -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    context = get_context("fork")
    workers = [context.Process(target=target) for target in (kill, os.getpid)]
    for worker in workers:
        worker.start()
        worker.join()
    found = find_dead_workers(SimpleNamespace(_workers=workers), ValueError())
    assert [(w.number, w.signal) for w in found] == [(0, "SIGKILL"), (1, "")]
    assert [w.pid for w in found] == [worker.pid for worker in workers]


def test_a_dead_worker_is_found_in_what_torch_says() -> None:
    said = f"DataLoader worker (pid 12) is killed by signal: {signal.strsignal(9)}. Try more"
    assert find_dead_workers(None, RuntimeError(said)) == [DeadWorker(None, 12, "SIGKILL")]
    assert find_dead_workers(None, RuntimeError("anything else")) == []


KILLED, EXITED = DeadWorker(0, 12, "SIGKILL"), DeadWorker(1, 13, "")


def test_the_likely_cause_of_a_death_is_told() -> None:
    said = str(explain_failure(ValueError(), [EXITED, KILLED], "spawn", False))
    assert "(pid 12) died of SIGKILL: out of memory" in said
    said = str(explain_failure(ConnectionError(), [], "spawn", True))
    assert "ended while it sent a batch: out of memory" in said
    said = str(explain_failure(ValueError(), [EXITED], "forkserver", False))
    assert "(pid 13) exited unexpectedly" in said
    assert "loader.multiprocessing_context=forkserver" in said
    assert '__name__ == "__main__"' in said


def test_a_script_without_a_main_guard_is_told_so() -> None:
    error = RuntimeError("before the current process has finished its bootstrapping phase")
    assert "imports the script" in str(explain_failure(error, [], "spawn", False))


def test_other_errors_are_not_a_workers() -> None:
    assert explain_failure(ValueError("a step failed"), [], None, True) is None


def test_only_the_shared_memory_of_the_dead_is_removed() -> None:
    mark = f"test{os.getpid()}"
    files = [Path(f"/dev/shm/torch_{pid}_{mark}") for pid in (999_999_991, 999_999_992)]
    for file in files:
        file.write_bytes(b"x")
    try:
        remove_shared_memory([999_999_991])
        assert [file.exists() for file in files] == [False, True]
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def test_signals_of_children_are_ignored_for_a_while() -> None:
    def handle(number: int, frame: object) -> None:
        raise AssertionError("a signal of a child")

    before = signal.signal(signal.SIGCHLD, handle)
    try:
        with without_child_signals():
            os.kill(os.getpid(), signal.SIGCHLD)
        assert signal.getsignal(signal.SIGCHLD) is handle
        seen: list[object] = []

        def look() -> None:
            with without_child_signals():
                seen.append(signal.getsignal(signal.SIGCHLD))

        other = threading.Thread(target=look)
        other.start()
        other.join()
        assert seen == [handle], "only the main thread handles signals"
    finally:
        signal.signal(signal.SIGCHLD, before)
