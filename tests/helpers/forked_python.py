"""Python processes that start with torch, torchvision, DALI and gpupipe imported already.

A new Python imports these for 3 seconds of CPU time. `run` and `Process` take what `subprocess`
takes, but fork a process that has imported them. What `import gpupipe` does, or an environment
variable that is read at an import, is tested in a fork that has imported torch alone
(`has_torch_alone`), or in a new Python: use `subprocess` there.

`executable` is for scripts, and for code of gpupipe and torch, that start sys.executable: a program
that does what this Python does, and forks that process for it.

    test process  --socket: arguments, folder, environment, files 0 to 2-->  forked_python_server.py
                  <--socket: pid, then exit code--------------------------     | fork
                                                                             the program

The program is killed when the test process ends.
"""

import atexit
import functools
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from helpers import forked_python_program


class Process:
    """A Python with these arguments, as subprocess.Popen([sys.executable, *arguments]) starts one.

    Attributes:
        stdin: A file to write its input to if `stdin` is subprocess.PIPE, else None.
        stdout: A file to read its output from if `stdout` is subprocess.PIPE, else None.
        stderr: A file to read its errors from if `stderr` is subprocess.PIPE, else None.
        pid: Its process id.
        returncode: Its exit code, -N for signal N; None before `wait` has returned.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        has_torch_alone: bool = False,
    ) -> None:
        request: dict[str, object] = {
            "arguments": [str(word) for word in arguments],
            "descriptors": [],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "executable": sys.executable if has_torch_alone else executable(),
        }
        self.stdin, theirs_in = _connected(stdin, 0)
        self.stdout, theirs_out = _connected(stdout, 1)
        self.stderr, theirs_err = _connected(stderr, 2)
        streams = [theirs_in, theirs_out, theirs_err]
        address = f"{_server()}.torch" if has_torch_alone else _server()
        self._connection = forked_python_program.send_request(address, request, streams)
        for stream in streams:
            os.close(stream)
        self._answers = self._connection.makefile("r", encoding="utf-8")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        if self.stdin:
            self.stdin.close()
        self.wait(60)
        for stream in (self.stdout, self.stderr):
            if stream:
                stream.close()
        self._answers.close()
        self._connection.close()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when the process has ended."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("python", timeout or 0)
            self.returncode = int(self._answers.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _connected(stream: IO[Any] | int | None, number: int) -> tuple[IO[str] | None, int]:
    """Return our end of a pipe, or None, and a descriptor for the process's file `number`."""
    if stream != subprocess.PIPE:
        assert not isinstance(stream, int)
        return None, os.dup(stream.fileno() if stream else number)
    reading, writing = os.pipe()
    return (open(writing, "w"), reading) if number == 0 else (open(reading), writing)


def run(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 250,
    check: bool = False,
    has_torch_alone: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Return how a Python with these arguments ended, and its output as text."""
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        open(os.devnull) as nothing,
        Process(
            arguments,
            cwd=cwd,
            env=env,
            stdin=nothing,
            stdout=out,
            stderr=err,
            has_torch_alone=has_torch_alone,
        ) as process,
    ):
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())
    if check:
        done.check_returncode()
    return done


@functools.cache
def executable() -> str:
    """The path of a program that does what `python ARGUMENTS` does. It ends with this process.

    With another of Python's options than -c, -m, -u and -W it starts a new one.
    """
    script = Path(_server()).with_name("python")
    program = forked_python_program.__file__
    command = [sys.executable, "-I", "-S", program, str(script), _server()]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o700)
    return str(script)


@functools.cache
def _server() -> str:
    """The address of the process that is forked, which ends with this one."""
    # No TemporaryDirectory: a child that multiprocessing forks would remove it (Python 3.13).
    folder, owner = tempfile.mkdtemp(prefix="forked-python"), os.getpid()
    address = os.path.join(folder, "socket")
    command = [sys.executable, str(Path(__file__).with_name("forked_python_server.py")), address]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline(), "the server did not start"

    def end() -> None:
        if os.getpid() == owner:
            server.communicate(timeout=60)
            shutil.rmtree(folder)

    atexit.register(end)
    return address
