import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from gpupipe.bench.compare import disturbance
from gpupipe.bench.machine import Load, cpu_seconds, machine

BUSY = [sys.executable, "-c", "while True: pass"]


def test_what_other_processes_take_is_told_apart_and_said() -> None:
    # The shell ends at once, so the process behind it is no descendant of this one.
    script = '"$@" </dev/null >/dev/null & echo $!'
    busy = int(subprocess.check_output(["sh", "-c", script, "sh", *BUSY]))
    try:
        time.sleep(0.3)
        with Load() as load:
            started = time.process_time()
            while time.process_time() < started + 0.3:
                pass
        assert load.others > 0.15
        assert 0.25 < load.cpu_seconds < 0.5
    finally:
        os.kill(busy, signal.SIGKILL)
    assert "DISTURBED: other processes kept up to 0.9" in disturbance(0.9)[0]
    assert disturbance(0.01) == []


def test_the_time_of_a_child_of_a_child_counts() -> None:
    wrapper = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    started = cpu_seconds()
    child = subprocess.Popen([sys.executable, "-c", wrapper, *BUSY], start_new_session=True)
    try:
        _wait_until(lambda: cpu_seconds() > started + 1.0)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors name no family")
def test_a_processor_whose_name_has_no_number_is_told_by_family_and_model() -> None:
    assert any(character.isdigit() for character in machine()["processor"])


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
