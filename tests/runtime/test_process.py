"""Child processes end with their parent, and leave neither processes nor zombies behind.

Forked children close what their parent alone may hold. Methods are called at exit.

The processes of the tests with a FIFO hold its writing end. Reading it ends when the last of them
has ended.
"""

import fcntl
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from socket import AF_UNIX, create_connection, create_server, socket

import pytest

from gpupipe.runtime import process
from gpupipe.runtime.process import ChildProcess, run_python
from helpers import forked_python
from helpers.forks import in_fork

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
from gpupipe.runtime.process import ChildProcess
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
    completed = run_python(
        "-c", "import sys; print(sys.stdin.read() * 2); sys.exit(3)", stdin=b"ab"
    )
    assert (completed.stdout, completed.stderr, completed.returncode) == (b"abab\n", b"", 3)


def test_run_kills_what_the_child_started(fifo: Path) -> None:
    assert run_python("-c", GRANDCHILD, str(fifo)).returncode == 0


def test_run_kills_a_child_that_takes_too_long(fifo: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_python("-c", GRANDCHILD, str(fifo), "wait", timeout=2)


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


def test_a_forked_child_closes_what_its_parent_alone_may_hold(tmp_path: Path) -> None:
    """And nothing else; the parent keeps it."""
    lock, other = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("lock", "other"))
    fcntl.flock(lock, fcntl.LOCK_EX)
    file = str(tmp_path / "socket")
    with (
        create_server(("127.0.0.1", 0)) as listening,
        create_server(("127.0.0.1", 0)) as unrelated,
        create_connection(listening.getsockname()) as client,
        socket(AF_UNIX) as local,
    ):
        local.bind(file)
        accepted, _ = listening.accept()
        port = listening.getsockname()[1]
        process.close_in_forks(lock)
        process.close_sockets_in_forks(port)
        process.close_sockets_in_forks(file)
        everything = [s.fileno() for s in (listening, accepted, local, unrelated, client)]
        before = {n: _link(n) for n in [*everything, lock, other]}
        try:
            kept = in_fork(lambda: [n for n, link in before.items() if _link(n) == link])
        finally:
            process.keep_in_forks(lock)
            process.keep_sockets_in_forks(port)
            process.keep_sockets_in_forks(file)
        assert kept == str([unrelated.fileno(), client.fileno(), other])
        accepted.sendall(b"x")
        assert client.recv(1) == b"x"
        accepted.close()
        assert in_fork(lambda: _link(lock)) == before[lock], "no longer"
    os.close(lock)
    os.close(other)


def _link(descriptor: int) -> str:
    """What a descriptor refers to in this process, "" for nothing."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""


def _run_worker(file: Path) -> None:
    process.end_with_parent(lambda: file.write_text("told"))
    file.with_suffix(".pid").write_text(f"{os.getpid()}\n")
    signal.pause()


def _run_parent(start: str, file: Path) -> None:
    """Start workers and wait: the later one has copies of what the earlier ones have."""
    context = multiprocessing.get_context(start)
    for name in ("one", "two"):
        context.Process(target=_run_worker, args=(file / name,)).start()
    signal.pause()


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_a_worker_ends_with_its_parent(tmp_path: Path, start: str) -> None:
    # A fork has a copy of the fork server that an earlier test started, and may not wait for it.
    of_parent = "spawn" if start == "forkserver" else "fork"
    parent = multiprocessing.get_context(of_parent).Process(
        target=_run_parent, args=(start, tmp_path)
    )
    parent.start()
    workers = [os.pidfd_open(_read_pid(tmp_path / f"{name}.pid")) for name in ("one", "two")]
    assert not select.select(workers, [], [], 0.1)[0], "they live as long as their parent"
    parent.kill()
    parent.join()
    for worker in workers:
        assert select.select([worker], [], [], 60)[0], "it lives on"
        os.close(worker)
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["told", "told"]


def _read_pid(file: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text()).endswith("\n"):
            return int(text)
        time.sleep(0.01)
    raise AssertionError("the worker does not start")


EXIT_PROGRAM = """
import os, sys
from gpupipe.runtime.process import ExitHandler

class Connection:
    def __init__(self, name):
        self.name = name
        self.at_exit = ExitHandler(self.close)
    def close(self):
        print("close", self.name, flush=True)
    def __del__(self):
        print("free", self.name, flush=True)

"""


def output_of(program: str) -> list[str]:
    done = forked_python.run(["-c", EXIT_PROGRAM + program], check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_the_newest_is_called_first() -> None:
    assert output_of("a, b = Connection('a'), Connection('b')")[:2] == ["close b", "close a"]


def test_an_object_is_freed_as_early_as_without_its_handler() -> None:
    assert output_of("a = Connection('a'); del a; print('deleted')") == ["free a", "deleted"]


def test_a_cancelled_handler_is_not_called() -> None:
    assert "close a" not in output_of("a = Connection('a'); a.at_exit.cancel(); a.at_exit.cancel()")


def test_a_forked_child_calls_no_handler_of_its_parent() -> None:
    program = """
a = Connection('a')
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print('forked', flush=True)
"""
    lines = output_of(program)
    assert lines.count("close a") == 1
    assert lines.index("forked") < lines.index("close a")


CLOSED = """
import os
from gpupipe.runtime import process

process.close_in_forks(os.open("/dev/null", os.O_RDONLY))
os.closerange(3, 64)  # as a daemon does
if os.fork() == 0:
    os._exit(0)
os.wait()
"""


def test_a_fork_of_a_process_that_closed_its_descriptors_prints_nothing() -> None:
    command = [sys.executable, "-c", CLOSED]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_signals_are_named() -> None:
    assert process.name_signal(signal.SIGKILL) == "SIGKILL"
    assert process.name_signal(40) == "signal 40"  # a real-time signal, which has no name
    assert process.name_signal(-1) == process.name_signal(0) == ""
