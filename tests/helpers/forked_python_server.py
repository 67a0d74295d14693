"""The process that forked_python.py has forked: a Python with torch, DALI and gpupipe imported.

    python tests/helpers/forked_python_server.py SOCKET

A fork of it that has imported torch alone serves at SOCKET.torch. It imports nothing from
forked_python.py, and ends when its standard input does.
"""

import atexit
import fcntl
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

PRELOADED = (
    "torch",
    "torchvision.transforms.v2.functional",
    "nvidia.dali.fn",
    "nvidia.dali.pipeline",
    "gpupipe.cli.app",
    "gpupipe.engines.cpu.engine",
    "gpupipe.engines.dali.engine",
    "gpupipe.engines.dataloader.engine",
    "gpupipe.engines.remote.engine",
    "gpupipe.server.service",
    "gpupipe.server.metrics",
    "gpupipe.sources.remote",
    "gpupipe.cache.downloader",
    "fsspec.implementations.local",
)
_MAX_FILES = 32
PRELOADED_IF_NAMED = {
    "lightning": ("lightning.pytorch",),
    # What ray imports, and not ray: it reads its environment when it is imported. Each worker of it
    # is two processes one after the other, which import ray both.
    "ray": (
        *("google.protobuf.json_format", "jsonschema", "pandas", "psutil", "pyarrow.parquet"),
        *("requests", "filelock", "dateutil.parser", "tqdm", "msgpack", "pdb", "wcwidth"),
    ),
}
"""Modules that cost seconds, and that few programs import: imported when the first one names the
package.
"""


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    return listener


def _serve(listener: socket.socket) -> list[str]:
    """Fork for each request. Returns, in the child, the arguments of the program it is to run.

    It has no process for each program that watches over it: a fork of this process takes 40 ms.
    """
    is_ending = False
    programs: dict[int, _Program] = {}  # by the descriptor that says when the process has ended
    while programs or not is_ending:
        watched: list[int | socket.socket] = [*programs] if is_ending else [*programs, listener, 0]
        watched += [p.connection for p in programs.values() if not p.is_killed]
        ready = select.select(watched, [], [])[0]
        if 0 in ready:
            is_ending = True
            for program in programs.values():  # a fork server of multiprocessing is still there
                program.kill()
        for descriptor, program in list(programs.items()):
            if descriptor in ready:
                program.report_end()
                del programs[descriptor]
                os.close(descriptor)
            elif program.connection in ready:
                program.kill()
        if listener in ready:
            connection, _ = listener.accept()
            request, streams = _receive(connection)
            _preload(_named_modules(request["arguments"], Path(request["cwd"])))
            if not (pid := os.fork()):
                listener.close()
                connection.close()
                for descriptor, program in programs.items():
                    os.close(descriptor)
                    program.connection.close()
                return _become(request, streams)
            for stream in streams:
                os.close(stream)
            with suppress(BrokenPipeError):
                connection.sendall(f"{pid}\n".encode())
            programs[os.pidfd_open(pid)] = _Program(pid, connection)
    return []


class _Program:
    """A program that runs, and the connection to who asked for it, who ends it by hanging up."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self.connection, self.is_killed = pid, connection, False

    def kill(self) -> None:
        self.is_killed = True
        os.kill(self.pid, signal.SIGKILL)

    def report_end(self) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with self.connection, suppress(BrokenPipeError, ConnectionResetError):
            self.connection.sendall(f"{code}\n".encode())


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The request that forked_python_program.py sends, and its open files."""
    size, streams, _, _ = socket.recv_fds(connection, 8, _MAX_FILES)
    with connection.makefile("rb") as content:
        return marshal.loads(content.read(int.from_bytes(size, "little"))), streams


def _become(request: dict[str, Any], streams: list[int]) -> list[str]:
    """Take the files, folder and environment of a request. Returns its arguments."""
    numbers = [0, 1, 2, *request["descriptors"]]
    above = max([*numbers, *streams]) + 1
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD, above) for stream in streams]
    for stream in streams:
        os.close(stream)
    for number, stream in zip(numbers, moved, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable = request["executable"]
    return list(request["arguments"])


def _preload(names: Iterable[str]) -> None:
    """Import what programs import; what is not installed they miss themselves."""
    for name in names:
        with suppress(ImportError):
            __import__(name)


def _named_modules(arguments: list[str], folder: Path) -> list[str]:
    """Those of PRELOADED_IF_NAMED whose package a program's text imports."""
    text = "\n".join(arguments)
    for word in arguments:
        if word.endswith(".py"):
            with suppress(OSError):
                text += (folder / word).read_text()
    return [
        name
        for package, names in PRELOADED_IF_NAMED.items()
        if f"import {package}." in text or f"from {package}." in text
        for name in names
    ]


def _main(arguments: list[str]) -> None:
    """Do what `python ARGUMENTS` does."""
    kind, *words = arguments
    if kind == "-u" or os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    if kind == "-u":
        kind, *words = arguments = words
    if kind == "-W":
        warnings.simplefilter(words[0])  # type: ignore[arg-type]
        kind, *words = arguments = words[1:]
    sys.path[0:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-m":
        sys.argv = words
        sys.modules.pop(words[0], None)  # a program runs its module anew, with what that imports
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
    _preload(["torch"])
    listener, with_torch_alone = _listen(sys.argv[1]), _listen(f"{sys.argv[1]}.torch")
    if os.fork():
        with_torch_alone.close()
        _preload(PRELOADED)
        sys.modules["gpupipe.runtime.registry"].list_entries("")  # of what is installed, once
        print("ready", flush=True)
    else:
        listener.close()
        listener = with_torch_alone
    # A child of this process finds what its own PYTHONPATH names, and not what this one's names.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [place for place in sys.path if place not in filter(None, given)]
    if program := _serve(listener):
        _run_and_exit(program)
    os._exit(0)  # see _run_and_exit
