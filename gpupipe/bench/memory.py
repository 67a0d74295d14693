"""Measures the peak memory of this process and all its descendants.

The peak is the largest sum of their proportional set sizes (PSS) over time. A page that n processes
share counts 1/n in the PSS of each, so it counts once in the sum. The peaks of single processes do
not add up: pages that forked workers share with their parent would count once per process, and the
processes need not peak at the same time.

A small separate process (`python -I -S memory.py PID`) reads and adds the sizes. It imports only
the standard library. A sampling thread in this process would take the GIL, and make forks unsafe.

Reading the PSS of a process locks its address space for a walk over its pages. The sampler
therefore reads four times a second, and less often if one reading takes more than 5 ms of CPU time.
"""

import os
import select
import sys
import time
from contextlib import suppress
from typing import Any

_SECONDS_BETWEEN = 0.25
_LARGEST_SHARE = 0.02
"""The largest share of one core that the sampling process may use."""
_ROLLUP = "/proc/{}/smaps_rollup"

PSS, OWN_PEAKS = "pss", "own peaks"
ADDED_UP = (
    "each process's own peak, added up: this system tells no PSS, and pages that "
    "processes share count for each"
)


class PeakMemory:
    """A context manager that measures the peak memory of this process and its descendants.

    Attributes:
        bytes: The peak in bytes, after the context or `stop`.
        kind: How `bytes` was measured. PSS: as the largest sum of proportional set sizes over
            time. OWN_PEAKS: as the sum of the peaks that this process and its live children had
            since they started. This is the fallback where the system has no PSS: not Linux, or
            Linux before 4.14. Shared pages then count once per process.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.kind = OWN_PEAKS
        self._process: Any = None

    def __enter__(self) -> "PeakMemory":
        # not at the head of this file, which also runs as a script
        from gpupipe.runtime.process import ChildProcess
        from gpupipe.runtime.systems import IS_POSIX

        if IS_POSIX and os.access(_ROLLUP.format("self"), os.R_OK):  # Wine shows Linux's
            self._process = ChildProcess("-I", "-S", __file__, str(os.getpid()))
            self._process.read_line()  # wait for the first sample
        return self

    def stop(self) -> None:
        """Take the last sample, and set `bytes` and `kind`. Idempotent."""
        if self._process is not None:
            # Closing the pipe is not enough: forked workers hold copies of it. So send a byte.
            self._process.write(b"\n")
            printed = self._process.read_rest().split()
            self._process.end()
            self.bytes = int(printed[-1]) if printed else 0
            self._process = None
            self.kind = PSS
        if not self.bytes:
            self.bytes, self.kind = _own_peaks(), OWN_PEAKS

    def __exit__(self, *error: object) -> None:
        self.stop()


def _own_peaks() -> int:
    """Return the sum of the peaks of this process and its live children, in bytes.

    Without /proc, it is the ru_maxrss of this process alone, which may include the peak of the
    process that started this one. So it is on Windows, where it is the largest working set.
    """
    from multiprocessing import active_children

    if os.name == "nt":
        return _largest_working_set()
    pids = ("self", *(child.pid for child in active_children()))
    peaks = [_value(f"/proc/{pid}/status", b"VmHWM:") for pid in pids]
    if peaks[0]:
        return sum(peaks)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _largest_working_set() -> int:
    import ctypes

    class Counters(ctypes.Structure):
        """PROCESS_MEMORY_COUNTERS of psapi.h."""

        _fields_ = (
            ("size", ctypes.c_uint32),
            ("page_faults", ctypes.c_uint32),
            ("largest_working_set", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 7),
        )

    counters, this_process = Counters(size=ctypes.sizeof(Counters)), ctypes.c_void_p(-1)
    ask = getattr(ctypes, "WinDLL")("kernel32").K32GetProcessMemoryInfo  # noqa: B009
    ask(this_process, ctypes.byref(counters), counters.size)
    return int(counters.largest_working_set)


def pss(root: int) -> int:
    """Return the proportional set sizes (PSS) of `root` and its descendants, added up, in bytes.

    The calling process does not count. Returns 0 if the system has no PSS.
    """
    return sum(_value(_ROLLUP.format(pid), b"Pss:") for pid in list_family(root))


def list_family(root: int) -> set[int]:
    """Return the PIDs of the process `root` and its live descendants, except the caller."""
    parents = {int(name): _parent(name) for name in os.listdir("/proc") if name.isdigit()}
    family, new = set[int](), {root}
    while new:
        family |= new
        new = {pid for pid, parent in parents.items() if parent in new} - family
    return family - {os.getpid()}


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:  # the process has ended
        return 0


def _value(path: str, key: bytes) -> int:
    """Return the size after `key` in a line such as "Pss:   217 kB", in bytes; 0 without it."""
    try:
        with open(path, "rb") as file:
            line = next((line for line in file if line.startswith(key)), None)
    except OSError:
        return 0
    return int(line.split()[1]) * 1024 if line else 0


def _sample(root: int) -> None:
    """Sample the PSS of `root` and its descendants, and print the peak in bytes.

    `root` is the parent of this process. Sampling ends when a byte arrives on standard input or
    `root` ends. An empty line, for which the parent waits, is printed after the first sample.
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
