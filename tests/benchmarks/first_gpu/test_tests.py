"""The part of first_gpu.sh that runs tests/gpu: it survives tests that crash and hang."""

import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_executable")

TESTS = """
import os, signal, time
import pytest

def test_a():
    pass

def test_a_crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_a_failure():
    assert 1 == 2

def test_hang():
    time.sleep(1000)

@pytest.fixture
def broken():
    raise OSError("no such device")

def test_error(broken):
    pass

@pytest.mark.parametrize("n", [1, 10])
def test_after(n):
    pass

@pytest.mark.skip(reason="needs an NVIDIA GPU")
def test_skipped():
    pass
"""


def test_every_outcome_is_noted_and_no_test_is_lost(tmp_path: Path) -> None:
    from first_gpu import tests

    (tmp_path / "test_some.py").write_text(TESTS)
    outcomes = tests.run([tmp_path], tmp_path / "log.jsonl", time.monotonic() + 200, test_seconds=8)
    found = {name.rpartition("::")[2]: o for name, o in outcomes.items()}
    assert {name: o.outcome for name, o in found.items()} == {
        "test_a": "passed",
        "test_a_crash": "crashed with status -11",
        "test_a_failure": "failed",
        "test_hang": "hangs",
        "test_error": "error",
        "test_after[1]": "passed",
        "test_after[10]": "passed",
        "test_skipped": "skipped",
    }
    assert "assert 1 == 2" in found["test_a_failure"].text
    assert "no such device" in found["test_error"].text
    assert "needs an NVIDIA GPU" in found["test_skipped"].text


def test_a_file_that_cannot_be_imported_is_an_error_and_the_others_run(tmp_path: Path) -> None:
    from first_gpu import tests

    (tmp_path / "test_broken.py").write_text("import there_is_no_such_module\n")
    (tmp_path / "test_good.py").write_text("def test_good(): pass\n")
    outcomes = tests.run([tmp_path], tmp_path / "log.jsonl", time.monotonic() + 100)
    found = {name.rpartition("/")[2]: o for name, o in outcomes.items()}
    assert {name: o.outcome for name, o in found.items()} == {
        "test_broken.py": "error",
        "test_good.py::test_good": "passed",
    }
    assert "there_is_no_such_module" in found["test_broken.py"].text


def test_what_is_not_done_in_time_is_said(tmp_path: Path) -> None:
    from first_gpu import tests

    (tmp_path / "test_slow.py").write_text("import time\ndef test_slow(): time.sleep(1000)\n")
    outcomes = tests.run([tmp_path], tmp_path / "log.jsonl", time.monotonic() + 8)
    ((name, outcome),) = outcomes.items()
    assert name.endswith("test_slow")
    assert outcome.outcome == "not done in time"
