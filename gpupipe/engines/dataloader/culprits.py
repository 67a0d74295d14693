"""Finds samples that crash a process, by decoding and transforming them again in other processes.

A decoder or step that accesses invalid memory is killed by a signal, which its process cannot
catch. So the suspects, the samples that a dead worker may have had, go to a new process with one
thread. That process forks one child after another. A child writes one byte to a pipe before each
sample, so the number of bytes tells which sample killed it. The next child starts with that sample,
to test whether the sample alone crashes a process.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import torch

from gpupipe.engines.dataloader.samples import Samples, WorkItem
from gpupipe.errors import EngineError, counted
from gpupipe.runtime.capability_probe import describe_exit
from gpupipe.runtime.process import run_python
from gpupipe.sampling.sampler import Plan

CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"})
"""Signals that faulty code raises in its own process.

SIGKILL is missing, because it comes from the kernel when memory runs out, or from a user.
"""
_SECONDS = 300
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from "
    "gpupipe.engines.dataloader.culprits import child; child()"
)


class WorkerCrashError(EngineError):
    """A worker died of a signal that a sample or a step most likely caused.

    Attributes:
        plans: The plans of the batches that the worker may have been working on.
        description: Which worker died, and of which signal.
    """

    def __init__(self, description: str, plans: Sequence[Plan]) -> None:
        self.description, self.plans = description, list(plans)
        super().__init__(f"{description}, most likely while it decoded or transformed a sample")


def find_killers(
    samples: Samples, items: Sequence[WorkItem], seconds: float = _SECONDS
) -> list[tuple[int, str]]:
    """Find the work items that crash a process in which no other work item ran before.

    Args:
        samples: The data set that the workers use.
        items: Work items of one sample each.
        seconds: Time limit for all work items together.

    Returns:
        For each work item that crashes: its position in `items`, and the name of the signal.

    Raises:
        EngineError: If the new process does not start, fails without a crash, or takes too long.
    """
    try:
        content = pickle.dumps((samples, list(items)))
    except Exception as e:  # __reduce__ of a plugin's step can raise anything
        raise EngineError(
            f"the samples that it may have had cannot be tried in another process: {e}"
        ) from e
    try:
        process = run_python("-c", _START, json.dumps(sys.path), stdin=content, timeout=seconds)
    except subprocess.TimeoutExpired as e:
        raise EngineError(
            "the samples that it may have had could not all be tried in another "
            f"process within {seconds:g} s"
        ) from e
    if ended := describe_exit(process.returncode, process.stderr.decode(errors="replace")):
        raise EngineError(
            f"the process that tried the samples that it may have had failed: {ended}"
        )
    return [(position, name) for position, name in json.loads(process.stdout)]


def explain_survival(crash: WorkerCrashError, count: int) -> EngineError:
    """Return the error for a crash that none of the `count` suspects reproduced."""
    advice = (
        "A full /dev/shm does that: `gpupipe doctor` shows it"
        if "SIGBUS" in crash.description
        else "Try loader.multiprocessing_context=spawn"
    )
    return EngineError(
        f"{crash.description}, but no sample is to blame: another process survived "
        f"{counted(count, 'sample')} that it may have had. {advice}"
    )


def child() -> None:
    """Try the pickled work items from stdin, and print those that crash, as JSON.

    `find_killers` runs this in a new process.
    """
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that what a step prints does not get into the JSON
    samples, items = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    print(json.dumps(_run_in_children(samples, items)), file=answer)


def _run_in_children(samples: Samples, items: Sequence[WorkItem]) -> list[tuple[int, str]]:
    crashes = []
    begin = 0
    while begin < len(items):
        done, ended = _fork(samples, items[begin:])
        if not ended:
            break
        if ended not in CRASHES:
            sys.exit(f"it died of {ended}")
        if done == 0:
            crashes.append((begin, ended))
        begin += done or 1
    return crashes


def _fork(samples: Samples, items: Sequence[WorkItem]) -> tuple[int, str]:
    """Process work items in a forked child.

    Returns how many items the child survived, and the name of the signal that killed it, or "".
    """
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        for item in items:
            os.write(writing, b".")
            with suppress(Exception):  # only crashes are of interest
                samples[item]
        os._exit(0)  # not sys.exit(): exit handlers of plugins may crash
    os.close(writing)
    with open(reading, "rb") as announced:
        count = len(announced.read())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return count - 1, signal.Signals(-status).name if status < 0 else ""
