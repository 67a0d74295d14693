"""The process that forked_python.py forks: a Python with torch, DALI and gpupipe imported.

    python tests/helpers/forked_python_server.py SOCKET

It imports nothing from forked_python.py, and ends when its standard input does.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path

PRELOADED = (
    "torch",
    "torchvision.transforms.v2.functional",
    "nvidia.dali.fn",
    "nvidia.dali.pipeline",
    "gpupipe.cli.app",
    "gpupipe.engines.cpu.engine",
    "gpupipe.engines.dali.engine",
    "gpupipe.engines.dataloader.engine",
)


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
        with suppress(BrokenPipeError):
            connection.sendall(f"{pid}\n".encode())
        if connection in select.select([connection, os.pidfd_open(pid)], [], [])[0]:
            with suppress(ProcessLookupError):  # nobody waits for it any more
                os.kill(pid, signal.SIGKILL)
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
    sys.executable = request["executable"]
    return list(request["arguments"])


def _preload() -> None:
    """Import what most programs import; what is not installed they miss themselves."""
    for name in PRELOADED:
        with suppress(ImportError):
            __import__(name)


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
