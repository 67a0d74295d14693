"""Child processes end with their parent, and leave neither processes nor zombies behind.

The processes of these tests hold the writing end of a FIFO. Reading it ends when the last of them
has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupipe.runtime.child_process import ChildProcess, run

ECHO = """
import sys
for line in sys.stdin: print(line.upper(), end="", flush=True)
"""
GRANDCHILD = """
import os, subprocess, sys
fifo = os.open(sys.argv[1], os.O_WRONLY)
subprocess.Popen(["sleep", "600"], pass_fds=[fifo], stdout=-3, stderr=-3)
if len(sys.argv) > 2: sys.stdin.read(), os.system("sleep 600")
"""
PARENT = """
import os, sys, time
from gpupipe.runtime.child_process import ChildProcess
code = "import os, sys; os.open(sys.argv[1], os.O_WRONLY); print(flush=True); sys.stdin.read()"
child = ChildProcess("-c", code, sys.argv[1])
child.read_line()
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A FIFO; at the end of the test no process has it open for writing."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_run_returns_what_the_child_printed() -> None:
    completed = run("-c", "import sys; print(sys.stdin.read() * 2); sys.exit(3)", stdin=b"ab")
    assert (completed.stdout, completed.stderr, completed.returncode) == (b"abab\n", b"", 3)


def test_run_kills_what_the_child_started(fifo: Path) -> None:
    assert run("-c", GRANDCHILD, str(fifo)).returncode == 0


def test_run_kills_a_child_that_takes_too_long(fifo: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("-c", GRANDCHILD, str(fifo), "wait", timeout=2)


def test_a_child_answers_lines_and_ends_with_its_input() -> None:
    child = ChildProcess("-c", ECHO, request=b"one\n")
    child.write(b"two\n")
    assert [child.read_line(), child.read_line()] == [b"ONE\n", b"TWO\n"]
    assert child.poll() is None
    assert child.end() == child.end() == 0
    child.write(b"three\n")
    assert child.read_rest() == b""


def test_a_child_that_has_ended_is_no_zombie_and_takes_no_more_lines() -> None:
    child = ChildProcess("-c", "")
    assert child.wait() == 0
    child.write(b"x" * (1 << 20))
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    assert child.end() == 0


def test_a_child_that_does_not_end_is_killed() -> None:
    code = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    child = ChildProcess("-c", code)
    child.read_line()
    child.terminate()
    assert child.end(patience=0.1) == -signal.SIGKILL


def test_a_child_ends_when_its_parent_is_killed(fifo: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(fifo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
