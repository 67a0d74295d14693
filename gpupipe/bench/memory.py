"""Peak memory of this process and all that it starts: the largest sum of their proportional set
sizes (PSS) over time.

A page that n processes share counts 1/n in the PSS of each, so it counts once in the sum. Peaks of
single processes cannot be added up: what forked workers share with their parent would count once
for each, and they need not peak at the same time.

The sums are taken by a small process of its own (`python -I -S memory.py PID`): it imports nothing
but what is below, takes no time of this process's interpreter, and no thread of it stands in the
way of a fork. Reading the PSS of a process holds the lock on its address space for the time of a
walk over its pages, so that it is done four times a second, and less often where all of them take
more than 5 ms of CPU time.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

_SECONDS_BETWEEN = 0.25
_LARGEST_SHARE = 0.02
"""Of a core that goes to sampling."""
_ROLLUP = "/proc/{}/smaps_rollup"

PSS, OWN_PEAKS = "pss", "own peaks"
ADDED_UP = (
    "each process's own peak, added up: this system tells no PSS, and pages that "
    "processes share count for each"
)


class PeakMemory:
    """A context: `bytes` is then the most memory that this process and its descendants held
    meanwhile.

    kind: PSS; or OWN_PEAKS where the system does not tell the PSS of a process (not Linux, or
    before 4.14): the most that each process held since it began, this one and its live children,
    added up; shared pages then count once for each.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.kind = OWN_PEAKS
        self._process: Any = None

    def __enter__(self) -> PeakMemory:
        if os.access(_ROLLUP.format("self"), os.R_OK):
            import subprocess

            command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )  # away from Ctrl-C
            self._process.stdout.readline()  # the first sample: from here on all is seen
        return self

    def stop(self) -> None:
        """Take the last sample. May be called twice."""
        if self._process is not None:
            printed, _ = self._process.communicate(
                b"\n"
            )  # a byte: its end alone would not come where workers were forked meanwhile
            self.bytes = int(printed.split()[-1]) if printed.split() else 0
            self._process = None
            self.kind = PSS
        if not self.bytes:
            self.bytes, self.kind = _own_peaks(), OWN_PEAKS

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _own_peaks() -> int:
    """Not ru_maxrss where that can be helped: it also counts the process that started this one."""
    from multiprocessing import active_children

    if sys.platform == "win32":
        import psutil

        return sum(
            psutil.Process(pid).memory_info().peak_wset
            for pid in (os.getpid(), *(child.pid for child in active_children()))
        )
    peaks = [
        _value(f"/proc/{pid}/status", b"VmHWM:")
        for pid in ("self", *(child.pid for child in active_children()))
    ]
    if not peaks[0]:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
    return sum(peaks)


def pss(root: int) -> int:
    """Bytes that a process and its descendants hold now, without this one; 0 where that cannot be
    told.
    """
    return sum(_value(_ROLLUP.format(pid), b"Pss:") for pid in _family(root))


def _family(root: int) -> set[int]:
    """A process and its descendants, without this one."""
    parents = {int(name): _parent(name) for name in os.listdir("/proc") if name.isdigit()}
    found, new = set[int](), {root}
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in new} - found
    return found - {os.getpid()}


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:  # it has ended meanwhile
        return 0


def _value(path: str, key: bytes) -> int:
    """Bytes, of a line such as "Pss:   217 kB"; 0 where there is none."""
    try:
        with open(path, "rb") as file:
            line = next((line for line in file if line.startswith(key)), None)
    except OSError:
        return 0
    return int(line.split()[1]) * 1024 if line else 0


def _sample(root: int) -> None:
    """Print a line when the first sample is taken, and the largest when a byte comes over standard
    input, or its parent has ended.
    """
    largest = pss(root)
    _write(b"\n")
    wait = _SECONDS_BETWEEN
    while not select.select([0], [], [], wait)[0] and os.getppid() == root:
        started = time.process_time()
        largest = max(largest, pss(root))
        wait = max(_SECONDS_BETWEEN, (time.process_time() - started) / _LARGEST_SHARE)
    _write(b"%d\n" % max(largest, pss(root)))


def _write(line: bytes) -> None:
    with suppress(BrokenPipeError):  # the process was killed
        os.write(1, line)


if __name__ == "__main__":
    _sample(int(sys.argv[1]))
