"""Which samples end the process that makes them: each is made again in a process that may die.

A decoder or a step that writes where it may not is stopped by a signal, which nothing in that
process can catch. So the samples that a dead worker may have had go to a fresh process, which has
one thread. It forks one process after another: each announces a sample before it makes it, so that
the last announced is the one that it died of. That sample begins the next process, which shows
whether it does so alone.
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
from gpupipe.runtime.capability_probe import why_it_ended
from gpupipe.sampling.sampler import Plan

CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"})
"""What code does to its own process.

SIGKILL comes from elsewhere: from whoever wants the memory, or from a person.
"""
_SECONDS = 300
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from "
    "gpupipe.engines.dataloader.culprits import child; child()"
)


class WorkerCrashed(EngineError):
    """A worker died of what is most likely a sample's or a step's doing.

    Attributes:
        plans: The batches that it may have been making.
        said: Which worker it was, and what it died of.

    """

    def __init__(self, said: str, plans: Sequence[Plan]) -> None:
        self.said, self.plans = said, list(plans)
        super().__init__(f"{said}, most likely while it decoded or transformed a sample")


def killers(
    samples: Samples, works: Sequence[WorkItem], seconds: float = _SECONDS
) -> list[tuple[int, str]]:
    """Return the place and the signal of each work that ends the process that does it, and no other
    before it.

    Args:
        samples: What workers do.
        works: Of one sample each.
        seconds: The most that it may take.

    Raises:
        EngineError: If the process does not start, ends in another way, or is not done in time.

    """
    try:
        content = pickle.dumps((samples, list(works)))
    except Exception as e:  # whatever __reduce__ of a plugin's step raises
        raise EngineError(
            f"the samples that it may have had cannot be tried in another process: {e}"
        ) from e
    command = [sys.executable, "-c", _START, json.dumps(sys.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as tried:
        try:
            out, err = tried.communicate(content, seconds)
        except subprocess.TimeoutExpired as e:
            raise EngineError(
                "the samples that it may have had could not all be tried in another "
                f"process within {seconds:g} s"
            ) from e
        finally:  # also what it has forked
            with suppress(ProcessLookupError):
                os.killpg(tried.pid, signal.SIGKILL)
    if ended := why_it_ended(tried.returncode, err.decode(errors="replace")):
        raise EngineError(
            f"the process that tried the samples that it may have had failed: {ended}"
        )
    return [(place, name) for place, name in json.loads(out)]


def no_killer(crash: WorkerCrashed, count: int) -> EngineError:
    """What a crash comes to where none of the samples that the worker may have had ends a
    process.
    """
    advice = (
        "A full /dev/shm does that: `gpupipe doctor` shows it"
        if "SIGBUS" in crash.said
        else "Try loader.multiprocessing_context=spawn"
    )
    return EngineError(
        f"{crash.said}, but no sample is to blame: another process survived "
        f"{counted(count, 'sample')} that it may have had. {advice}"
    )


def child() -> None:
    """What that process does with what it reads from its standard input."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a step may print
    samples, works = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    print(json.dumps(_killers(samples, works)), file=answer)


def _killers(samples: Samples, works: Sequence[WorkItem]) -> list[tuple[int, str]]:
    found = []
    begin = 0
    while begin < len(works):
        done, ended = _fork(samples, works[begin:])
        if not ended:
            break
        if ended not in CRASHES:
            sys.exit(f"it died of {ended}")
        if done == 0:
            found.append((begin, ended))
        begin += done or 1
    return found


def _fork(samples: Samples, works: Sequence[WorkItem]) -> tuple[int, str]:
    """Do works in a process of their own: how many it survived, and the signal that it died of, or
    empty.
    """
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        for work in works:
            os.write(writing, b".")
            with suppress(Exception):  # which is no death
                samples[work]
        os._exit(0)  # a plugin may not survive its own end
    os.close(writing)
    with open(reading, "rb") as announced:
        count = len(announced.read())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return count - 1, signal.Signals(-status).name if status < 0 else ""
