"""Programs that end in the middle of an epoch, with an open loader whose engine works ahead.

What is tested is how an interpreter ends, so forked_python.py, which leaves that out, is of no use
here. A Python that has imported all forks for each program; the child ends as any interpreter does.

In a full run every engine ends in every way, and with GPUPIPE_EXITS=N it does so N times. Else
every engine ends in two of the five ways, and every way is tried with two of the five engines. In
the first of the two the garbage collector sees all objects, as in any program. In the other it sees
what the program has made, and not what was imported before the fork: that takes a second of CPU
time less.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers.cached_loading import waited
from helpers.full_product import IS_FULL
from helpers.leftovers import list_processes
from helpers.served import serving

TIMES = int(os.environ.get("GPUPIPE_EXITS", "0"))
NURSERY = """
import gc, json, os, sys
import gpupipe, gpupipe.engines.dali.engine, gpupipe.engines.cpu.engine
import gpupipe.engines.dataloader.engine, gpupipe.engines.remote.engine
for line in sys.stdin:
    request = json.loads(line)
    if child := os.fork():
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    if request["sees_imports"]:
        gc.unfreeze()
    os.setsid()
    os.dup2(os.open(request["errors"], os.O_WRONLY | os.O_CREAT, 0o600), 2)
    config, options, end, count = (request[k] for k in ("config", "options", "end", "count"))
    exec(request["program"])
    break
"""
PROGRAM = """
loader = gpupipe.load(config, **options)
batches = iter(loader)
for _ in range(count):
    batch = next(batches)
if end == "exit":
    sys.exit(3)
if end == "exception":
    raise RuntimeError("of the program")
if end == "exception in the loop":
    for batch in loader:
        raise RuntimeError("of the program")
if end == "cycle":
    cycle = [loader, batches, batch]
    cycle.append(cycle)
    del loader, batches, cycle
"""
ENDS = {
    "end": 0,
    "exit": 3,
    "exception": 1,
    "exception in the loop": 1,
    "cycle": 0,
}
ENGINES: dict[str, dict[str, Any]] = {
    "dali": {"engine": "dali", "prefetch": 4},
    "cpu": {"engine": "cpu", "prefetch": 4},
    "dataloader": {"engine": "dataloader", "workers": 2},
    "in-process dataloader": {"engine": "dataloader", "workers": 0},
}


def list_ends(number: int) -> list[str]:
    """The ends to try with the engine of this number; the client of a server is number 4."""
    ends = list(ENDS)
    return ends if IS_FULL or TIMES else [ends[(number + n) % len(ends)] for n in range(0, 4, 2)]


@dataclass
class Nursery:
    """A Python that forks programs."""

    process: subprocess.Popen[str]
    folder: Path

    def run_program(
        self, config: dict[str, Any], options: dict[str, Any], end: str, count: int, is_first: bool
    ) -> None:
        """Run a program; fail if it hangs, ends otherwise than it should, or leaves a process."""
        assert self.process.stdin and self.process.stdout
        errors = self.folder / "errors"
        errors.unlink(missing_ok=True)
        request = {"config": config, "options": options, "end": end, "count": count}
        request["sees_imports"] = bool(is_first or IS_FULL or TIMES)
        text = json.dumps(request | {"errors": str(errors), "program": PROGRAM})
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        watchdog = threading.Timer(120, os.kill, (child, signal.SIGKILL))
        watchdog.start()
        code = int(self.process.stdout.readline())
        watchdog.cancel()
        said = errors.read_text()
        assert code == ENDS[end], said
        assert said.count("Traceback") == ("exception" in end), said
        assert "Exception ignored" not in said
        if "exception" not in end:
            assert said == ""
        waited(lambda: not list_session(child))


def list_session(leader: int) -> list[int]:
    """The processes that a session leader left."""
    left = []
    for pid, _ in list_processes():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                left.append(pid)
    return left


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    command = [sys.executable, "-c", NURSERY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Nursery(process, tmp_path_factory.mktemp("exits"))
        process.kill()  # to free what it has imported would take it seconds


@pytest.fixture
def config(faces: Path) -> dict[str, Any]:
    return {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": ["decode", {"random_crop": {"size": 64}}],
        "loader": {"device": "cpu", "batch_size": 4},
    }


@pytest.mark.parametrize(
    ("engine", "end", "is_first"),
    [
        (engine, end, end == list_ends(n)[0])
        for n, engine in enumerate(ENGINES)
        for end in list_ends(n)
    ],
)
def test_a_program_ends_in_the_middle_of_an_epoch(
    nursery: Nursery, config: dict[str, Any], engine: str, end: str, is_first: bool
) -> None:
    for count in range(TIMES or 1):
        nursery.run_program(config, ENGINES[engine], end, 1 + count % 7, is_first)


@pytest.mark.parametrize("end", list_ends(len(ENGINES)))
def test_a_client_of_a_server_ends_in_the_middle_of_an_epoch(
    nursery: Nursery, config: dict[str, Any], end: str
) -> None:
    for count in range(TIMES or 1):
        with serving(config, {"engine": "dataloader", "workers": 0}) as server:
            options = {"engine": "remote", "server": server.address}
            is_first = end == list_ends(len(ENGINES))[0]
            nursery.run_program(config, options, end, 1 + count % 7, is_first)
