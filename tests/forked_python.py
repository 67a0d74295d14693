"""Python processes that start with torch, torchvision, DALI and gpupipe imported already.

A new Python imports these for 3 seconds of CPU time. `run` and `Process` take what `subprocess`
takes, but fork a process that has imported them. What `import gpupipe` does, or an environment
variable that is read at an import, is tested in a new Python: use `subprocess` there.

    test process  --socket: arguments, folder, environment, files 0 to 2-->  server (this file)
                                                                               | fork
                  <--socket: pid, then exit code--------------------------  monitor
                                                                               | fork
                                                                             the program
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

PRELOADED = (
    "torch",
    "torchvision.transforms.v2.functional",
    "nvidia.dali.fn",
    "nvidia.dali.pipeline",
    "gpupipe.cli.app",
    "gpupipe.engines.dali.engine",
    "gpupipe.engines.dataloader.engine",
)


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
    ) -> None:
        request = {
            "arguments": [str(word) for word in arguments],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_server())
        self.stdin, theirs_in = _connected(stdin, 0)
        self.stdout, theirs_out = _connected(stdout, 1)
        self.stderr, theirs_err = _connected(stderr, 2)
        streams = (theirs_in, theirs_out, theirs_err)
        content = json.dumps(request).encode() + b"\n"
        # The kernel takes no more than its buffer in one message: the files go with its first byte.
        socket.send_fds(self._connection, [content[:1]], streams)
        self._connection.sendall(content[1:])
        for stream in streams:
            os.close(stream)
        self._answers = self._connection.makefile("r", encoding="utf-8")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def __enter__(self) -> Process:
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
) -> subprocess.CompletedProcess[str]:
    """Return how a Python with these arguments ended, and its output as text."""
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        open(os.devnull) as nothing,
        Process(arguments, cwd=cwd, env=env, stdin=nothing, stdout=out, stderr=err) as process,
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
def _server() -> str:
    """The address of the process that is forked, which ends with this one."""
    # No TemporaryDirectory: a child that multiprocessing forks would remove it (Python 3.13).
    folder, owner = tempfile.mkdtemp(prefix="forked-python"), os.getpid()
    address = os.path.join(folder, "socket")
    command = [sys.executable, __file__, address]
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


# --- the server


def _serve(address: str) -> list[str]:
    """Fork for each request. Returns, in the child, the arguments of the program it is to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    monitors = set()
    while listener in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        monitors = {pid for pid in monitors if not os.waitpid(pid, os.WNOHANG)[0]}
        if monitor := os.fork():
            monitors.add(monitor)
            connection.close()
            continue
        listener.close()
        if arguments := _monitor(connection):
            return arguments
        os._exit(0)
    for pid in monitors:
        os.waitpid(pid, 0)
    return []


def _monitor(connection: socket.socket) -> list[str]:
    """Fork the program. Returns its arguments in the child; in the parent none, at its end."""
    content, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as rest:
        request = json.loads(content + rest.readline())
    if pid := os.fork():
        for stream in streams:
            os.close(stream)
        connection.sendall(f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError):
            connection.sendall(f"{code}\n".encode())
        return []
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return list(request["arguments"])


def _preload() -> None:
    """Import what most programs import; what is not installed they miss themselves."""
    for name in PRELOADED:
        with suppress(ImportError):
            __import__(name)


def _main(arguments: list[str]) -> None:
    """Do what `python ARGUMENTS` does."""
    kind, *words = arguments
    if kind == "-W":
        warnings.simplefilter(words[0])  # type: ignore[arg-type]
        kind, *words = arguments = words[1:]
    sys.path[0:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        code, *rest = words
        sys.argv = ["-c", *rest]
        module = sys.modules["__main__"].__dict__
        module.pop("__file__")
        exec(compile(code, "<string>", "exec"), module)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def _run_and_exit(program: list[str]) -> None:
    """Run a program, and end as Python does, but for the objects of all modules.

    To free what was imported takes a forked process 1.5 s of CPU time: it has to copy the memory.
    """
    code: object = 0
    try:
        _main(program)
    except SystemExit as e:
        code = e.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    _preload()
    # A child of this process finds what its own PYTHONPATH names, and not what this one's names.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [place for place in sys.path if place not in filter(None, given)]
    if program := _serve(sys.argv[1]):
        _run_and_exit(program)
