"""A thread waits for the result of a batch, and gets it as often as it asks."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from gpupipe.engines.cpu.batch_results import BatchResult, Outcome, RunFailures
from gpupipe.errors import EngineError


def test_a_thread_waits_for_the_result() -> None:
    outcome, result = Outcome(), BatchResult()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outcome.get)
        outcome.set(result)
        assert waiting.result(60) is result
    assert outcome.get() is outcome.wait() is result


def test_an_error_is_raised_by_get_alone() -> None:
    outcome, error = Outcome(), EngineError("no memory")
    outcome.set(error)
    for _ in range(2):
        with pytest.raises(EngineError, match="no memory"):
            outcome.get()
        assert outcome.wait() is error


def test_the_first_failure_of_a_run_decides_what_need_not_run() -> None:
    failures = RunFailures()
    assert not failures.is_before(0, 0)
    failures.record(2, 5)
    failures.record(1, 7)
    failures.record(1, 9)
    assert failures.is_before(1, 8)
    assert not failures.is_before(1, 7)
