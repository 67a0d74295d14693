"""Starts and ends Python in child processes; cleans up in forked children, in workers and at exit.

    run_python        starts a child, waits for its end, and returns its output
    ChildProcess      a child that runs beside this process, and exchanges lines of text with it
    close_in_forks    closes a descriptor in forked children
    name_signal       names the signal that ended a child
    end_with_parent   ends a worker when its parent ends
    ExitHandler       calls a method when the interpreter exits

Both kinds of children have this in common:

- The child runs the same interpreter as this process. Its arguments never hold data: other users
  can read them, and their length is limited. Data goes through standard input.
- The child does not outlive this process. Its standard input is a pipe, and the kernel closes that
  pipe when this process ends in any way. A ChildProcess has to end when its input does.
- The child is not forked, so it inherits no threads, locks or CUDA contexts of this process.
- No zombie remains: `run_python` and `ChildProcess.end` wait for the child.

A forked child has a copy of every descriptor. A port stays in use, and a file locked, until the
last copy is closed, so a child that outlives its parent keeps both. Close-on-exec does not help: a
forked worker calls no exec.

A worker notices the end of its parent by a pipe to which no one writes. Only the parent has the
writing end, and the kernel closes that when the parent ends in any way. PR_SET_PDEATHSIG is
unsuitable: it fires when the thread that forked the worker ends.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import connection, parent_process
from pathlib import Path
from weakref import WeakMethod

from gpupipe.runtime.systems import IS_POSIX, call_after_fork

_PATIENCE_SECONDS = 10.0


def run_python(
    *arguments: str,
    stdin: bytes = b"",
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run Python in a child process until it ends.

    The child has its own session, so that Ctrl-C reaches only this process. After the child ends,
    or if this function raises, the processes that the child started are killed too.

    Args:
        arguments: Arguments of the interpreter, such as "-m", "package.module".
        stdin: All of the child's standard input.
        timeout: Seconds until the child is killed; None for no limit.
        env: Environment variables; None for those of this process.

    Returns:
        The child's exit status, standard output and standard error.

    Raises:
        subprocess.TimeoutExpired: The child took longer than `timeout`.
    """
    command, pipe = [sys.executable, *arguments], subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout)
        finally:
            kill_session(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with a session of its own and those that it started; on Windows it alone."""
    if not IS_POSIX:
        process.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def name_signal(number: int) -> str:
    """Return the name of a signal, such as "SIGKILL"; "" for 0 and less, which are no signals."""
    names = {member.value: member.name for member in signal.Signals}
    return names.get(number, f"signal {number}") if number > 0 else ""


class ChildProcess(subprocess.Popen[bytes]):
    """A child process that runs beside this one, and exchanges bytes with it through pipes.

    The module that the child runs must end when its standard input does.

    If this process forks after it started the child, the fork holds a copy of the input pipe. Then
    closing the pipe here does not end the child, but `terminate` does.

    Args:
        arguments: Arguments of the interpreter, such as "-m", "package.module".
        request: Bytes to write to the child's standard input at the start.
        env: Environment variables; None for those of this process.
        own_session: Whether the child has its own session, so that Ctrl-C does not reach it.
    """

    def __init__(
        self,
        *arguments: str,
        request: bytes = b"",
        env: Mapping[str, str] | None = None,
        own_session: bool = True,
    ) -> None:
        command, pipe = [sys.executable, *arguments], subprocess.PIPE
        super().__init__(command, stdin=pipe, stdout=pipe, env=env, start_new_session=own_session)
        assert self.stdin is not None
        assert self.stdout is not None
        self._stdin, self._stdout = self.stdin, self.stdout
        self.write(request)

    def write(self, data: bytes) -> None:
        """Write to the child's standard input. Does nothing if the child or the pipe has ended."""
        if not self._stdin.closed:
            with suppress(BrokenPipeError):
                self._stdin.write(data)
                self._stdin.flush()

    def read_line(self) -> bytes:
        """Wait for the next line of the child's standard output and return it; b"" at the end."""
        return self._stdout.readline()

    def read_rest(self) -> bytes:
        """Return all further standard output of the child; wait until the child closes it."""
        return b"" if self._stdout.closed else self._stdout.read()

    def close_pipes(self) -> None:
        """Close the pipes, which tells the child to end. Does not wait for that. Idempotent."""
        for pipe in (self._stdin, self._stdout):
            with suppress(BrokenPipeError):
                pipe.close()

    def end(self, patience: float = _PATIENCE_SECONDS) -> int:
        """Close the pipes, and wait for the child to end. Idempotent.

        Args:
            patience: Seconds after which the child is killed.

        Returns:
            The exit status; -N if signal N ended the child.
        """
        self.close_pipes()
        try:
            return self.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()


_descriptors: set[int] = set()
_addresses: set[int | str] = set()
_reading, _writing = os.pipe()
_parents: list[int] = []
"""In a forked child: the reading end of its parent's pipe."""


def close_in_forks(descriptor: int) -> None:
    """Close a descriptor in every child that is forked from now on."""
    _descriptors.add(descriptor)


def keep_in_forks(descriptor: int) -> None:
    """Undo `close_in_forks`; call it before this process closes the descriptor. Idempotent."""
    _descriptors.discard(descriptor)


def close_sockets_in_forks(address: int | str) -> None:
    """Close a listening socket and its connections in every child that is forked from now on.

    Args:
        address: The port of a TCP socket, or the file of a Unix socket.
    """
    _addresses.add(address)


def keep_sockets_in_forks(address: int | str) -> None:
    """Undo `close_sockets_in_forks`. Idempotent."""
    _addresses.discard(address)


def end_with_parent(before_end: Callable[[], object] = lambda: None) -> None:
    """End this worker process as soon as its parent has ended. Call it in the worker.

    Args:
        before_end: Called before the worker ends.
    """
    parent = parent_process()
    # A worker of a fork server was not forked by its parent, so it waits for both.
    ends = [*_parents, *([parent.sentinel] if parent is not None else [])]

    def run() -> None:
        connection.wait(ends)
        try:
            before_end()
        finally:
            os._exit(1)

    threading.Thread(target=run, name="gpupipe parent", daemon=True).start()


def _after_fork() -> None:
    global _reading, _writing
    with suppress(OSError):  # a program that closed all descriptors, as daemons do
        os.close(_writing)
    _parents[:] = [_reading]
    _reading, _writing = os.pipe()
    for descriptor in [*_descriptors, *_find_sockets()]:
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _addresses.clear()


def _find_sockets() -> list[int]:
    """Return the descriptors of the sockets that `close_sockets_in_forks` was called for."""
    folder = Path("/proc/self/fd")
    if not _addresses or not folder.is_dir():
        return []
    return [n for n in map(int, os.listdir(folder)) if _own_address(n) in _addresses]


def _own_address(descriptor: int) -> int | str | None:
    """Return the local port of a TCP socket, or the file of a Unix socket; None for other files."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            return int(sock.getsockname()[1])
        return str(sock.getsockname()) if sock.family == socket.AF_UNIX else None
    except OSError:
        return None
    finally:
        sock.detach()  # it stays open


call_after_fork(_after_fork)


class ExitHandler:
    """Calls a bound method at exit, while modules and threads still work.

    Handlers are called in reverse order of creation. A forked child calls only handlers that it
    created itself.

    Args:
        method: The bound method. It should not raise.

    Examples:
        >>> class Connection:
        ...     def __init__(self) -> None:
        ...         self._at_exit = ExitHandler(self.close)
        ...
        ...     def close(self) -> None:
        ...         self._at_exit.cancel()
    """

    def __init__(self, method: Callable[[], None]) -> None:
        self._method, self._process = WeakMethod(method), os.getpid()
        atexit.register(self._call)

    def cancel(self) -> None:
        """Do not call the method at exit. Idempotent."""
        atexit.unregister(self._call)

    def _call(self) -> None:
        method = self._method()
        if method is not None and os.getpid() == self._process:
            method()
