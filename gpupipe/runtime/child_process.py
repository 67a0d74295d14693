"""Starts Python in child processes, and ends them.

`run` starts a child, waits for its end, and returns its output. `ChildProcess` is a child that runs
beside this process, and exchanges lines of text with it.

Both have this in common:

- The child runs the same interpreter as this process. Its arguments never hold data: other users
  can read them, and their length is limited. Data goes through standard input.
- The child does not outlive this process. Its standard input is a pipe, and the kernel closes that
  pipe when this process ends in any way. A ChildProcess has to end when its input does.
- The child is not forked, so it inherits no threads, locks or CUDA contexts of this process.
- No zombie remains: `run` and `ChildProcess.end` wait for the child.

Tests and benchmarks start `gpupipe` commands without this module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

_PATIENCE_SECONDS = 10.0


def run(
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
            _kill_session(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


class ChildProcess:
    """A child process that runs beside this one. It must end when its standard input ends.

    Args:
        arguments: Arguments of the interpreter, such as "-m", "package.module".
        request: Bytes to write to the child's standard input at the start.
        env: Environment variables; None for those of this process.
        own_session: Whether the child has its own session, so that Ctrl-C does not reach it.

    Attributes:
        pid: The child's process id.
    """

    def __init__(
        self,
        *arguments: str,
        request: bytes = b"",
        env: Mapping[str, str] | None = None,
        own_session: bool = True,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=own_session,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        self.write(request)

    def write(self, data: bytes) -> None:
        """Write to the child's standard input. Does nothing if the child or the pipe has ended."""
        if not self._stdin.closed:
            with suppress(BrokenPipeError):
                self._stdin.write(data)
                self._stdin.flush()

    def read_line(self) -> bytes:
        """Wait for the next line of the child's standard output; b"" at its end."""
        return self._stdout.readline()

    def read_rest(self) -> bytes:
        """Return all further standard output of the child; wait until the child closes it."""
        return b"" if self._stdout.closed else self._stdout.read()

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the child runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for the child to end, and return its exit status."""
        return self._process.wait()

    def close_pipes(self) -> None:
        """Close the pipes, which tells the child to end, but do not wait. Idempotent."""
        for pipe in (self._stdin, self._stdout):
            with suppress(BrokenPipeError):
                pipe.close()

    def terminate(self) -> None:
        """Send SIGTERM to the child. Does nothing if it has ended.

        Use it if this process has forked since it started the child. The fork holds a copy of the
        input pipe, so closing the pipe here does not end the child.
        """
        self._process.terminate()

    def end(self, patience: float = _PATIENCE_SECONDS) -> int:
        """Close the pipes, and wait for the child to end. Idempotent.

        Args:
            patience: Seconds after which the child is killed.

        Returns:
            The exit status, negative for a signal.
        """
        self.close_pipes()
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
